// Writes a safetensors file tensor by tensor, so that no more than one is in memory.
#ifndef NIBBLE_SERVER_CHECKPOINT_SAFETENSORS_WRITER_H_
#define NIBBLE_SERVER_CHECKPOINT_SAFETENSORS_WRITER_H_

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

namespace nibble::checkpoint {

struct TensorDeclaration {
  std::string name;
  std::string dtype;  // the container's name
  std::vector<int64_t> shape;
};

class SafetensorsWriter {
 public:
  // Creates `path`, which must not exist, and writes the header. kInvalidArgument: the file cannot
  // be created, or a declaration is wrong.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, const std::vector<TensorDeclaration>& tensors,
      const std::map<std::string, std::string>& metadata);
  // Removes the file unless Finish has succeeded.
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // All bytes of a declared tensor; each once, in any order. kInvalidArgument: not declared, given
  // before, or another size. kUnavailable: the system refuses the bytes.
  absl::Status Write(std::string_view name, std::span<const std::byte> data);

  // Syncs and closes the file. kInvalidArgument names a tensor that was not given.
  absl::Status Finish();

  // Of the whole file.
  uint64_t bytes() const { return bytes_; }

 private:
  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    bool written = false;
  };
  SafetensorsWriter(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  const std::string path_;
  int fd_;
  bool finished_ = false;
  uint64_t bytes_ = 0;
  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_SAFETENSORS_WRITER_H_
