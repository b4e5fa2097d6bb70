// The safetensors container: parsed and checked whole before any tensor is handed out. Nothing in a
// file is trusted; nothing is allocated from a number that was not checked against the file's size.
#ifndef NIBBLE_SERVER_CHECKPOINT_SAFETENSORS_H_
#define NIBBLE_SERVER_CHECKPOINT_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/mapped_file.h"

namespace nibble::checkpoint {

// One tensor of a file. The bytes live as long as `keep_alive` and are not aligned.
struct TensorEntry {
  std::string dtype;           // the container's name: "BF16", "F8_E4M3", "I32", ...
  std::vector<int64_t> shape;  // no dimension negative; empty for a scalar
  std::span<const std::byte> data;
  std::shared_ptr<const void> keep_alive;
  const MappedFile* file = nullptr;  // that `data` is of, if it is; lives as keep_alive does

  int64_t elements() const;
};

// Bits of one element of a container dtype; 0 for an unknown name.
int DTypeBits(std::string_view dtype);

class SafetensorsFile {
 public:
  // Maps `path`. kInvalidArgument names the file and the rule that it breaks.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  // Parses a file held in memory; `label` names it in messages.
  static absl::StatusOr<SafetensorsFile> Parse(std::span<const std::byte> bytes,
                                               std::shared_ptr<const void> keep_alive,
                                               std::string_view label);

  const std::map<std::string, TensorEntry>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // nullptr where there is none.
  const TensorEntry* Find(std::string_view name) const;

 private:
  std::map<std::string, TensorEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

// A tensor to be written; data.size() must match dtype and shape.
struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

// The file's bytes, in the strict form (sorted, padded, aligned).
absl::StatusOr<std::string> SerializeSafetensors(
    const std::vector<TensorToWrite>& tensors, const std::map<std::string, std::string>& metadata);
// Writes to a temporary file beside `path` and renames it.
absl::Status WriteSafetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                              const std::map<std::string, std::string>& metadata);

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_SAFETENSORS_H_
