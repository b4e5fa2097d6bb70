// The bytes of a safetensors file. A file that is accepted is written again and must read the same.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "server/checkpoint/safetensors.h"
#include "tests/fuzz/memory_limit.h"
#include "tests/fuzz/require.h"

namespace nibble::fuzz {
namespace {

using checkpoint::SafetensorsFile;
using checkpoint::TensorEntry;

bool SameBytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

void CheckEntry(const TensorEntry& entry, std::span<const std::byte> file) {
  Require(
      entry.data.empty() || (entry.data.data() >= file.data() &&
                             entry.data.data() + entry.data.size() <= file.data() + file.size()),
      "a tensor lies in its file");
  const auto bits = static_cast<uint64_t>(checkpoint::DTypeBits(entry.dtype));
  Require(bits > 0 && static_cast<uint64_t>(entry.elements()) * bits == 8 * entry.data.size(),
          "a tensor has the bytes of its type and shape");
}

void CheckRewritten(const SafetensorsFile& file) {
  std::vector<checkpoint::TensorToWrite> tensors;
  for (const auto& [name, entry] : file.tensors()) {
    tensors.push_back({name, entry.dtype, entry.shape, entry.data});
  }
  const auto text = checkpoint::SerializeSafetensors(tensors, file.metadata());
  Require(text.ok(), "a file that was read can be written");
  const auto again = SafetensorsFile::Parse(std::as_bytes(std::span(*text)), nullptr, "again");
  Require(again.ok(), "a file that was written can be read");
  Require(again->metadata() == file.metadata() && again->tensors().size() == tensors.size(),
          "a file that was written holds what was read");
  for (const auto& [name, entry] : file.tensors()) {
    const TensorEntry* found = again->Find(name);
    Require(found != nullptr && found->dtype == entry.dtype && found->shape == entry.shape &&
                SameBytes(found->data, entry.data),
            "a tensor that was written is the one that was read");
  }
}

}  // namespace
}  // namespace nibble::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble::fuzz;
  const MemoryLimit limit(static_cast<int64_t>(size));
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file = nibble::checkpoint::SafetensorsFile::Parse(bytes, nullptr, "input");
  if (!file.ok()) return 0;
  for (const auto& [name, entry] : file->tensors()) CheckEntry(entry, bytes);
  CheckRewritten(*file);
  return 0;
}
