// Regions of memory that the server and callers on its host both map.
//
// A region is an unnamed file that the server makes and seals: nobody can change its size, so no
// access of the server to its own mapping can fail. It is attached, and found by requests, until
// Detach; its memory is freed when the last request that uses it has let go.
#ifndef NIBBLE_SERVER_SERVICE_SHARED_MEMORY_H_
#define NIBBLE_SERVER_SERVICE_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace nibble::server {

class SharedRegion {
 public:
  virtual ~SharedRegion() = default;
  // 32 random hexadecimal digits.
  virtual const std::string& id() const = 0;
  // What a process of the same user opens to map the region, while it is attached.
  virtual const std::string& path() const = 0;
  virtual std::span<std::byte> bytes() const = 0;
};

// Thread safe. Regions may outlive it.
class SharedRegions {
 public:
  // All regions together take at most `max_bytes`, those that are detached and still in use
  // included.
  explicit SharedRegions(uint64_t max_bytes);
  ~SharedRegions();

  // Attaches a new region of zeros, of whole pages. kInvalidArgument for no bytes,
  // kResourceExhausted over the limit or where the system refuses.
  absl::StatusOr<std::shared_ptr<SharedRegion>> Attach(uint64_t bytes);
  void Detach(std::string_view id);

  // kNotFound.
  absl::StatusOr<std::shared_ptr<SharedRegion>> Find(std::string_view id) const;

  uint64_t bytes() const;

 private:
  class Region;
  class Usage;
  const std::shared_ptr<Usage> usage_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Region>, std::less<>> attached_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_SHARED_MEMORY_H_
