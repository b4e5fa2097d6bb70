#include "server/service/spool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fmt/format.h"

namespace nibble::server {

absl::StatusOr<std::unique_ptr<Spool>> Spool::Create() {
  const int fd = memfd_create("nibble-upload", MFD_CLOEXEC);
  if (fd < 0) {
    return absl::ResourceExhaustedError(
        fmt::format("cannot create a memory file: {}", std::strerror(errno)));
  }
  return std::unique_ptr<Spool>(new Spool(fd));
}

Spool::~Spool() { close(fd_); }

absl::Status Spool::Append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return absl::ResourceExhaustedError(fmt::format("cannot keep {} bytes after {}: {}",
                                                      bytes.size(), size_, std::strerror(errno)));
    }
    bytes.remove_prefix(static_cast<size_t>(written));
    size_ += static_cast<uint64_t>(written);
  }
  return absl::OkStatus();
}

absl::StatusOr<Spool::Mapped> Spool::Map() const {
  if (size_ == 0) return absl::InvalidArgumentError("expected some bytes; received none");
  void* address = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd_, 0);
  if (address == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        fmt::format("cannot map {} bytes: {}", size_, std::strerror(errno)));
  }
  const uint64_t size = size_;
  return Mapped{{static_cast<const std::byte*>(address), size},
                std::shared_ptr<const void>(address, [size](const void* mapped) {
                  munmap(const_cast<void*>(mapped), size);
                })};
}

}  // namespace nibble::server
