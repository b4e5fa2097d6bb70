#include "server/listener.h"

#include <grpcpp/server_builder.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "absl/synchronization/mutex.h"
#include "fmt/format.h"
#include "nibble/status.h"

namespace nibble::server {
namespace {

// Clients may ping this often, with or without calls, without being sent away: as often as the
// library lets a client ping.
constexpr int kMinPingIntervalMs = 10000;
// A connection whose peer is gone without a word is noticed, and its calls ended, within the sum.
constexpr int kPingIntervalMs = 60000;
constexpr int kPingTimeoutMs = 20000;
constexpr std::string_view kUnix = "unix:";

// Whether a process accepts connections on the socket.
bool IsAnswered(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool connected =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return connected;
}

// The library removes a socket file that is there, whoever listens on it.
absl::Status CheckUnixPath(const std::string& flag, std::string_view address) {
  std::string path(address.substr(kUnix.size()));
  if (path.starts_with("//")) path.erase(0, 2);
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) return absl::OkStatus();
  if (!S_ISSOCK(status.st_mode)) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: expected a path that is free or a socket's; '{}' is something else", flag, path));
  }
  if (IsAnswered(path)) {
    return absl::UnavailableError(
        fmt::format("{}: another process listens on '{}'", flag, address));
  }
  return absl::OkStatus();
}

bool IsUnix(std::string_view address) { return address.starts_with(kUnix); }

}  // namespace

absl::StatusOr<Listener> Listen(const std::string& flag, const std::vector<std::string>& addresses,
                                const std::shared_ptr<grpc::ServerCredentials>& credentials,
                                const std::vector<grpc::Service*>& services,
                                const ListenerOptions& options) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  grpc::ServerBuilder builder;
  std::vector<int> ports(addresses.size(), 0);
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (IsUnix(addresses[i])) NIBBLE_RETURN_IF_ERROR(CheckUnixPath(flag, addresses[i]));
    builder.AddListeningPort(addresses[i], credentials, &ports[i]);
  }
  for (grpc::Service* service : services) builder.RegisterService(service);
  const int limit = static_cast<int>(options.max_message_bytes);
  builder.SetMaxReceiveMessageSize(limit);
  builder.SetMaxSendMessageSize(limit);
  // Two servers on one port would share its connections at random.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams_per_connection);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             static_cast<int>(options.handshake_timeout_ms));
  if (options.quota != nullptr) builder.SetResourceQuota(*options.quota);
  Listener listener;
  listener.credentials = credentials;
  listener.server = builder.BuildAndStart();
  if (listener.server == nullptr) {
    const auto failed = std::find(ports.begin(), ports.end(), 0);
    const auto index = std::min(static_cast<size_t>(failed - ports.begin()), addresses.size() - 1);
    return absl::UnavailableError(
        fmt::format("{}: cannot listen on '{}'; is it in use?", flag, addresses[index]));
  }
  const auto tcp =
      std::find_if(addresses.begin(), addresses.end(), [](auto& a) { return !IsUnix(a); });
  if (tcp != addresses.end()) listener.port = ports[static_cast<size_t>(tcp - addresses.begin())];
  return listener;
}

}  // namespace nibble::server
