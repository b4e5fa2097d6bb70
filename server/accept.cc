#include "server/accept.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>

#include "server/log/log.h"

namespace nibble::server {
namespace {

constexpr rlim_t kMostDescriptors = rlim_t{1} << 20;

// Kept for files of weights, uploads, the metrics listener: this many, or an eighth of few.
constexpr rlim_t kReserve = 64;

// The first descriptor that no connection may have. The lowest free one is always taken, so as many
// are open as it says.
int FirstReserved() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return static_cast<int>(kMostDescriptors);
  const rlim_t most = std::min(limit.rlim_cur, kMostDescriptors);
  return static_cast<int>(most - std::min(kReserve, most / 8));
}

// At most a line a second, however many are refused.
void LogRefusal(int limit) {
  static std::atomic<int64_t> last_s{-1};
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const int64_t now_s = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  if (last_s.exchange(now_s) == now_s) return;
  log::Warn("connections_refused", {{"reason", "descriptors"}, {"limit", limit}});
}

}  // namespace

void UseAllDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kMostDescriptors));
  // Where that is not allowed, the limit stays and is kept to.
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace nibble::server

// In the place of the C library's, whose callers in this process are gRPC's listeners. They have no
// hook for a bound of connections.
extern "C" __attribute__((visibility("default"))) int accept4(int fd, sockaddr* address,
                                                              socklen_t* bytes, int flags) {
  const socklen_t room = bytes == nullptr ? 0 : *bytes;
  while (true) {
    if (bytes != nullptr) *bytes = room;
    const int accepted = static_cast<int>(syscall(SYS_accept4, fd, address, bytes, flags));
    if (accepted < 0) {
      // The next connection tries again; until then this one waits.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) errno = EAGAIN;
      return accepted;
    }
    const int limit = nibble::server::FirstReserved();
    if (accepted < limit) return accepted;
    close(accepted);
    nibble::server::LogRefusal(limit);
  }
}
