#include "server/checkpoint/safetensors_layout.h"

#include <algorithm>
#include <exception>
#include <set>
#include <string_view>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/container_dtype.h"
#include "server/checkpoint/quoted.h"
#include "server/checkpoint/safetensors_header.h"

namespace nibble::checkpoint {
namespace {

std::string JsonString(std::string_view text) { return nlohmann::json(text).dump(); }

absl::Status CheckName(const std::string& name, std::set<std::string_view>* names) {
  if (name == "__metadata__") {
    return absl::InvalidArgumentError("tensor name '__metadata__' is reserved");
  }
  if (names->insert(name).second) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("tensor {} appears twice", Quoted(name)));
}

}  // namespace

absl::StatusOr<SafetensorsLayout> PlanSafetensors(
    const std::vector<TensorDeclaration>& tensors,
    const std::map<std::string, std::string>& metadata) try {
  SafetensorsLayout layout;
  std::set<std::string_view> names;
  for (const TensorDeclaration& tensor : tensors) {
    const absl::StatusOr<int64_t> bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (!bytes.ok()) {
      return absl::InvalidArgumentError(fmt::format(
          "tensor {}: {}", Quoted(tensor.name),
          std::string_view(bytes.status().message().data(), bytes.status().message().size())));
    }
    if (absl::Status status = CheckName(tensor.name, &names); !status.ok()) return status;
    layout.places.push_back({layout.places.size(), 0, static_cast<uint64_t>(*bytes)});
  }
  // Wide types first, so that every tensor is aligned to its own element size.
  std::sort(layout.places.begin(), layout.places.end(),
            [&](const SafetensorsLayout::Place& a, const SafetensorsLayout::Place& b) {
              const int rank_a = DTypeRank(tensors[a.index].dtype);
              const int rank_b = DTypeRank(tensors[b.index].dtype);
              return rank_a != rank_b ? rank_a > rank_b
                                      : tensors[a.index].name < tensors[b.index].name;
            });

  std::vector<std::string> entries;
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : metadata) {
      pairs.push_back(fmt::format("{}:{}", JsonString(key), JsonString(value)));
    }
    entries.push_back(fmt::format("\"__metadata__\":{{{}}}", fmt::join(pairs, ",")));
  }
  uint64_t offset = 0;
  for (const SafetensorsLayout::Place& place : layout.places) {
    const TensorDeclaration& tensor = tensors[place.index];
    const uint64_t end = offset + place.bytes;
    entries.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                  JsonString(tensor.name), tensor.dtype,
                                  fmt::join(tensor.shape, ","), offset, end));
    offset = end;
  }
  std::string header = fmt::format("{{{}}}", fmt::join(entries, ","));
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        fmt::format("header of {} bytes exceeds the limit of {}", header.size(), kMaxHeaderBytes));
  }
  for (int shift = 0; shift < 64; shift += 8) {
    layout.prologue += static_cast<char>(header.size() >> shift & 0xFF);
  }
  layout.prologue += header;
  offset = layout.prologue.size();
  for (SafetensorsLayout::Place& place : layout.places) {
    place.offset = offset;
    offset += place.bytes;
  }
  return layout;
} catch (const std::exception& e) {  // a name or a metadata string that is not UTF-8
  return absl::InvalidArgumentError(fmt::format("safetensors header: {}", e.what()));
}

}  // namespace nibble::checkpoint
