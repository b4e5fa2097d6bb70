// Bytes that arrive in pieces, kept in an unnamed memory file and read as one range.
#ifndef NIBBLE_SERVER_SERVICE_SPOOL_H_
#define NIBBLE_SERVER_SERVICE_SPOOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"

namespace nibble::server {

class Spool {
 public:
  static absl::StatusOr<std::unique_ptr<Spool>> Create();
  ~Spool();
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  // kResourceExhausted when the host's memory does not suffice.
  absl::Status Append(std::string_view bytes);
  uint64_t size() const { return size_; }

  struct Mapped {
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> keep_alive;
  };
  // Everything appended so far; valid without the spool. kInvalidArgument when that is nothing.
  absl::StatusOr<Mapped> Map() const;

 private:
  explicit Spool(int fd) : fd_(fd) {}
  int fd_;
  uint64_t size_ = 0;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_SPOOL_H_
