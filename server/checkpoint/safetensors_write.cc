#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <set>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/container_dtype.h"
#include "server/checkpoint/quoted.h"
#include "server/checkpoint/safetensors.h"
#include "server/checkpoint/safetensors_header.h"

namespace nibble::checkpoint {
namespace {

struct Layout {
  std::string prologue;                       // the length and the padded header
  std::vector<const TensorToWrite*> tensors;  // in file order
};

std::string JsonString(std::string_view text) { return nlohmann::json(text).dump(); }

absl::StatusOr<Layout> PlanLayout(const std::vector<TensorToWrite>& tensors,
                                  const std::map<std::string, std::string>& metadata) try {
  Layout layout;
  for (const TensorToWrite& tensor : tensors) {
    const absl::StatusOr<int64_t> bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (!bytes.ok()) {
      return absl::InvalidArgumentError(fmt::format(
          "tensor {}: {}", Quoted(tensor.name),
          std::string_view(bytes.status().message().data(), bytes.status().message().size())));
    }
    if (static_cast<uint64_t>(*bytes) != tensor.data.size()) {
      return absl::InvalidArgumentError(
          fmt::format("tensor {}: {} [{}] takes {} bytes, received {}", Quoted(tensor.name),
                      tensor.dtype, fmt::join(tensor.shape, ", "), *bytes, tensor.data.size()));
    }
    if (tensor.name == "__metadata__") {
      return absl::InvalidArgumentError("tensor name '__metadata__' is reserved");
    }
    layout.tensors.push_back(&tensor);
  }
  // Wide types first, so that every tensor is aligned to its own element size.
  std::sort(layout.tensors.begin(), layout.tensors.end(),
            [](const TensorToWrite* a, const TensorToWrite* b) {
              const int rank_a = DTypeRank(a->dtype);
              const int rank_b = DTypeRank(b->dtype);
              return rank_a != rank_b ? rank_a > rank_b : a->name < b->name;
            });

  std::vector<std::string> entries;
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : metadata) {
      pairs.push_back(fmt::format("{}:{}", JsonString(key), JsonString(value)));
    }
    entries.push_back(fmt::format("\"__metadata__\":{{{}}}", fmt::join(pairs, ",")));
  }
  std::set<std::string_view> names;
  uint64_t offset = 0;
  for (const TensorToWrite* tensor : layout.tensors) {
    if (!names.insert(tensor->name).second) {
      return absl::InvalidArgumentError(
          fmt::format("tensor {} appears twice", Quoted(tensor->name)));
    }
    const uint64_t end = offset + tensor->data.size();
    entries.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                  JsonString(tensor->name), tensor->dtype,
                                  fmt::join(tensor->shape, ","), offset, end));
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
  return layout;
} catch (const std::exception& e) {  // a name or a metadata string that is not UTF-8
  return absl::InvalidArgumentError(fmt::format("safetensors header: {}", e.what()));
}

absl::Status WriteAll(int fd, const std::string& path, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = write(fd, at, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return absl::UnavailableError(
          fmt::format("{}: cannot write: {}", path, std::strerror(errno)));
    }
    at += written;
    size -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

absl::Status WriteLayout(int fd, const std::string& path, const Layout& layout) {
  absl::Status status = WriteAll(fd, path, layout.prologue.data(), layout.prologue.size());
  for (const TensorToWrite* tensor : layout.tensors) {
    if (!status.ok()) return status;
    status = WriteAll(fd, path, tensor->data.data(), tensor->data.size());
  }
  if (status.ok() && fsync(fd) != 0) {
    status = absl::UnavailableError(fmt::format("{}: cannot sync: {}", path, std::strerror(errno)));
  }
  return status;
}

}  // namespace

absl::StatusOr<std::string> SerializeSafetensors(
    const std::vector<TensorToWrite>& tensors, const std::map<std::string, std::string>& metadata) {
  absl::StatusOr<Layout> layout = PlanLayout(tensors, metadata);
  if (!layout.ok()) return layout.status();
  std::string bytes = std::move(layout->prologue);
  for (const TensorToWrite* tensor : layout->tensors) {
    bytes.append(reinterpret_cast<const char*>(tensor->data.data()), tensor->data.size());
  }
  return bytes;
}

absl::Status WriteSafetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  const absl::StatusOr<Layout> layout = PlanLayout(tensors, metadata);
  if (!layout.ok()) return layout.status();

  static std::atomic<unsigned> counter{0};
  const std::string temporary =
      fmt::format("{}.{}.{}.tmp", path, getpid(), counter.fetch_add(1, std::memory_order_relaxed));
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) {
    return absl::InvalidArgumentError(
        fmt::format("{}: cannot create: {}", temporary, std::strerror(errno)));
  }
  absl::Status status = WriteLayout(fd, temporary, *layout);
  if (close(fd) != 0 && status.ok()) {
    status = absl::UnavailableError(
        fmt::format("{}: cannot close: {}", temporary, std::strerror(errno)));
  }
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = absl::InvalidArgumentError(
        fmt::format("{}: cannot rename: {}", path, std::strerror(errno)));
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

}  // namespace nibble::checkpoint
