#include "tests/fuzz/checkpoint_recipe.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nibble/format.h"
#include "nibble/numeric.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/safetensors.h"

namespace nibble::fuzz {
namespace {

constexpr size_t kMaxFiles = 16;
constexpr size_t kMaxTensors = 256;

// The text up to `separator`, which is taken off `text` with it.
std::string_view Take(std::string_view* text, char separator) {
  const size_t end = text->find(separator);
  const std::string_view taken = text->substr(0, end);
  *text = end == std::string_view::npos ? std::string_view() : text->substr(end + 1);
  return taken;
}

template <typename Number>
Number NumberOf(std::string_view text) {
  Number number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

bool IsFileName(std::string_view name) {
  return !name.empty() && name.size() <= 64 && name != "." && name != ".." &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '-' || c == '_';
         });
}

std::string RandomBytes(uint32_t seed, size_t size) {
  std::string bytes(size, '\0');
  uint32_t state = seed * 2654435761u + 1;
  for (char& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

std::string FromHex(std::string_view hex) {
  std::string bytes;
  for (; hex.size() >= 2; hex.remove_prefix(2)) {
    unsigned byte = 0;
    std::from_chars(hex.data(), hex.data() + 2, byte, 16);
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

std::string Element(std::string_view dtype, std::string_view number) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (dtype != DTypeName(type)) continue;
    std::string bytes(DTypeBytes(type), '\0');
    StoreFromFloat(bytes.data(), type, 0, static_cast<float>(NumberOf<double>(number)));
    return bytes;
  }
  const auto value = NumberOf<int64_t>(number);
  const auto size = static_cast<size_t>(std::max(checkpoint::DTypeBits(dtype), 8)) / 8;
  std::string bytes(std::min<size_t>(size, 8), '\0');
  std::memcpy(bytes.data(), &value, bytes.size());
  return bytes;
}

std::string Table(const float (&table)[16]) {
  std::string bytes(sizeof(table), '\0');
  std::memcpy(bytes.data(), table, bytes.size());
  return bytes;
}

// What a fill repeats, or all of the `size` bytes.
std::string Pattern(std::string_view dtype, std::string_view fill, size_t size) {
  if (fill == "nf4") return Table(kNF4Table);
  if (fill == "fp4") return Table(kFP4Table);
  const char kind = fill.empty() ? '\0' : fill.front();
  if (!fill.empty()) fill.remove_prefix(1);
  std::string bytes;
  switch (kind) {
    case 'r':
      return RandomBytes(NumberOf<uint32_t>(fill), size);
    case 'v':
      while (!fill.empty()) bytes += Element(dtype, Take(&fill, ','));
      return bytes;
    case 'x':
      return FromHex(fill);
    case 't':
      return std::string(fill);
    default:
      return bytes;
  }
}

std::string Filled(std::string_view dtype, std::string_view fill, size_t size) {
  const std::string pattern = Pattern(dtype, fill, size);
  std::string bytes(size, '\0');
  for (size_t at = 0; at < size && !pattern.empty(); at += pattern.size()) {
    std::memcpy(bytes.data() + at, pattern.data(), std::min(pattern.size(), size - at));
  }
  return bytes;
}

std::string WithLength(std::string_view header, std::string_view data) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof(length));
  bytes += header;
  bytes += data;
  return bytes;
}

// `lines` as a container. A size that does not fit leaves the tensor without bytes, which the
// reader has to notice.
std::string MakeContainer(std::string_view lines, int64_t max_bytes) {
  std::vector<std::string> entries;
  std::string data;
  while (!lines.empty() && entries.size() < kMaxTensors) {
    std::string_view line = Take(&lines, '\n');
    const std::string_view name = Take(&line, ' ');
    const std::string_view dtype = Take(&line, ' ');
    std::string_view dims = Take(&line, ' ');
    const std::string_view fill = line;
    if (dtype.empty()) continue;
    std::vector<int64_t> shape;
    if (dims == "-") {
      shape = {static_cast<int64_t>(fill.size()) - 1};
      dims = {};
    }
    while (!dims.empty()) shape.push_back(NumberOf<int64_t>(Take(&dims, ',')));
    __int128 bits = checkpoint::DTypeBits(dtype);
    for (const int64_t dim : shape) {
      bits = dim < 0 || bits > (__int128{1} << 62) ? 0 : bits * dim;
    }
    const __int128 left = max_bytes - static_cast<int64_t>(data.size());
    const size_t size = bits / 8 <= left ? static_cast<size_t>(bits / 8) : 0;
    entries.push_back(fmt::format(
        R"({}:{{"dtype":{},"shape":[{}],"data_offsets":[{},{}]}})",
        nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
        nlohmann::json(dtype).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
        fmt::join(shape, ","), data.size(), data.size() + size));
    data += Filled(dtype, fill, size);
  }
  return WithLength(fmt::format("{{{}}}", fmt::join(entries, ",")), data);
}

struct Section {
  std::string name;
  std::string bytes;
};

// `text` begins after the '@'.
Section MakeSection(std::string_view text, int64_t max_bytes) {
  std::string_view title = Take(&text, '\n');
  std::string_view name = Take(&title, ' ');
  if (name == "header") {
    name = Take(&title, ' ');
    const auto size = NumberOf<int64_t>(Take(&title, ' '));
    const auto fits = static_cast<size_t>(std::clamp<int64_t>(size, 0, max_bytes));
    return {std::string(name), WithLength(text, Filled("U8", title, fits))};
  }
  if (name.ends_with(".safetensors")) return {std::string(name), MakeContainer(text, max_bytes)};
  return {std::string(name), std::string(text)};
}

}  // namespace

RecipeFiles MakeFiles(std::string_view recipe) {
  RecipeFiles files;
  int64_t left = kMaxRecipeBytes;
  // A section begins at an '@' that begins a line.
  while (!recipe.empty() && files.size() < kMaxFiles) {
    const size_t next = recipe.find("\n@");
    std::string_view section = recipe.substr(0, next);
    recipe = next == std::string_view::npos ? std::string_view() : recipe.substr(next + 1);
    if (!section.starts_with('@')) continue;
    section.remove_prefix(1);
    Section made = MakeSection(section, left);
    if (!IsFileName(made.name)) continue;
    left -= std::min(left, static_cast<int64_t>(made.bytes.size()));
    files.insert_or_assign(std::move(made.name), std::move(made.bytes));
  }
  return files;
}

int64_t BytesOf(const RecipeFiles& files) {
  int64_t bytes = 0;
  for (const auto& [name, text] : files) bytes += static_cast<int64_t>(text.size());
  return bytes;
}

}  // namespace nibble::fuzz
