#include "server/service/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "nibble/status.h"

namespace nibble::server {
namespace {

constexpr size_t kIdBytes = 16;

absl::Status SystemError(std::string_view what) {
  return absl::ResourceExhaustedError(
      fmt::format("shared memory: cannot {}: {}", what, std::strerror(errno)));
}

absl::StatusOr<std::string> RandomId() {
  std::array<unsigned char, kIdBytes> random;
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return SystemError("make a name");
  }
  std::string id;
  for (const unsigned char byte : random) id += fmt::format("{:02x}", byte);
  return id;
}

}  // namespace

// Bytes of all regions that are mapped.
class SharedRegions::Usage {
 public:
  explicit Usage(uint64_t max_bytes) : max_bytes_(max_bytes) {}
  bool Take(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    if (bytes > max_bytes_ - bytes_) return false;
    bytes_ += bytes;
    return true;
  }
  void Give(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    bytes_ -= bytes;
  }
  uint64_t bytes() const {
    std::lock_guard lock(mutex_);
    return bytes_;
  }
  uint64_t max_bytes() const { return max_bytes_; }

 private:
  const uint64_t max_bytes_;
  mutable std::mutex mutex_;
  uint64_t bytes_ = 0;
};

class SharedRegions::Region final : public SharedRegion {
 public:
  Region(std::shared_ptr<Usage> usage, uint64_t bytes) : usage_(std::move(usage)), bytes_(bytes) {}
  ~Region() override {
    CloseFile();
    if (mapped_ != MAP_FAILED) munmap(mapped_, bytes_);
    usage_->Give(bytes_);
  }

  absl::Status Open() {
    NIBBLE_ASSIGN_OR_RETURN(id_, RandomId());
    fd_ = memfd_create("nibble", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd_ < 0) return SystemError("create a file");
    if (ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) return SystemError("size the file");
    if (fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      return SystemError("seal the file");
    }
    mapped_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (mapped_ == MAP_FAILED) return SystemError("map the file");
    path_ = fmt::format("/proc/{}/fd/{}", getpid(), static_cast<int>(fd_));
    return absl::OkStatus();
  }

  // The path leads nowhere from now on.
  void CloseFile() {
    if (const int fd = fd_.exchange(-1); fd >= 0) close(fd);
  }

  const std::string& id() const override { return id_; }
  const std::string& path() const override { return path_; }
  std::span<std::byte> bytes() const override {
    return {static_cast<std::byte*>(mapped_), static_cast<size_t>(bytes_)};
  }

 private:
  const std::shared_ptr<Usage> usage_;
  const uint64_t bytes_;
  std::string id_;
  std::string path_;
  std::atomic<int> fd_{-1};
  void* mapped_ = MAP_FAILED;
};

SharedRegions::SharedRegions(uint64_t max_bytes) : usage_(std::make_shared<Usage>(max_bytes)) {}
SharedRegions::~SharedRegions() = default;

absl::StatusOr<std::shared_ptr<SharedRegion>> SharedRegions::Attach(uint64_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("bytes: expected at least 1; received 0");
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t over = bytes % page == 0 ? 0 : page - bytes % page;
  if (bytes > usage_->max_bytes() || !usage_->Take(bytes + over)) {
    return absl::ResourceExhaustedError(fmt::format(
        "bytes: expected at most {} in all regions together (--max-shared-memory-bytes), {} of "
        "them taken; received {}",
        usage_->max_bytes(), usage_->bytes(), bytes));
  }
  auto region = std::make_shared<Region>(usage_, bytes + over);
  NIBBLE_RETURN_IF_ERROR(region->Open());
  std::lock_guard lock(mutex_);
  attached_.emplace(region->id(), region);
  return region;
}

void SharedRegions::Detach(std::string_view id) {
  std::shared_ptr<Region> detached;  // freed after the lock
  std::lock_guard lock(mutex_);
  const auto found = attached_.find(id);
  if (found == attached_.end()) return;
  detached = std::move(found->second);
  attached_.erase(found);
  detached->CloseFile();
}

absl::StatusOr<std::shared_ptr<SharedRegion>> SharedRegions::Find(std::string_view id) const {
  std::lock_guard lock(mutex_);
  const auto found = attached_.find(id);
  if (found == attached_.end()) {
    return absl::NotFoundError(
        fmt::format("region: expected one that AttachMemory gave and whose call is open; received "
                    "a name of {} bytes that is none",
                    id.size()));
  }
  return found->second;
}

uint64_t SharedRegions::bytes() const { return usage_->bytes(); }

}  // namespace nibble::server
