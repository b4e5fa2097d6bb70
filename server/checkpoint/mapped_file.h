// A file mapped for reading. A file may be cut short, or become unreadable, while it is mapped: the
// kernel then answers a read of the missing part with SIGBUS. Here such a read gives zeros, and
// intact() is false from then on.
#ifndef NIBBLE_SERVER_CHECKPOINT_MAPPED_FILE_H_
#define NIBBLE_SERVER_CHECKPOINT_MAPPED_FILE_H_

#include <signal.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble::checkpoint {

class MappedFile {
 public:
  // kNotFound, kPermissionDenied, kResourceExhausted; kInvalidArgument for what is no regular file
  // or shorter than `min_bytes`. The first call handles SIGBUS from then on; one that no mapped
  // file accounts for goes to the handler that was there before.
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(const std::string& path,
                                                                size_t min_bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  // Maps the pages of `part` of bytes() at once, which are going to be read: a fault for every few
  // of them would cost more.
  void Populate(std::span<const std::byte> part) const;
  // Gives the system back the memory of the whole pages within `part` of bytes(). They are read
  // from the file again when they are needed.
  void Release(std::span<const std::byte> part) const;
  // False once zeros were read in place of bytes of the file. To be asked after the reads.
  bool intact() const;
  // kInvalidArgument naming the file unless it is intact.
  absl::Status CheckIntact() const;

 private:
  struct Slot;
  struct Table;
  MappedFile(std::string path, std::span<const std::byte> bytes, Slot* slot)
      : path_(std::move(path)), bytes_(bytes), slot_(slot) {}
  static void OnBusError(int signal, siginfo_t* info, void* context);

  const std::string path_;
  const std::span<const std::byte> bytes_;
  Slot* const slot_;
};

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_MAPPED_FILE_H_
