// A gRPC server of one plane: its addresses and the limits of its connections.
#ifndef NIBBLE_SERVER_LISTENER_H_
#define NIBBLE_SERVER_LISTENER_H_

#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::server {

struct ListenerOptions {
  uint64_t max_message_bytes = uint64_t{256} << 20;
  // Calls under way on one connection; further ones wait on the caller's side.
  int max_streams_per_connection = 1024;
  // Of a new connection, until the peer has sent its settings; then it is closed.
  int64_t handshake_timeout_ms = 20000;
  // What the transport holds for all connections of the servers that share it; null: no bound.
  const grpc::ResourceQuota* quota = nullptr;
};

struct Listener {
  std::shared_ptr<grpc::ServerCredentials> credentials;  // asked at every handshake
  std::unique_ptr<grpc::Server> server;
  int port = 0;  // of the first TCP address; 0 without one
};

// Listens on every address ("host:port", "[v6]:port" or "unix:path") with one server. The socket
// file of a server that has ended is replaced, that of one that answers is not. `flag` names the
// addresses in messages, which say which of them failed:
//   kUnavailable      an address is in use or not this machine's
//   kInvalidArgument  a Unix path where something else lies
// Turns off, for the whole process, the deadlock detector of the library's mutexes, which a
// distribution may build in and which takes a twentieth of a small call.
absl::StatusOr<Listener> Listen(const std::string& flag, const std::vector<std::string>& addresses,
                                const std::shared_ptr<grpc::ServerCredentials>& credentials,
                                const std::vector<grpc::Service*>& services,
                                const ListenerOptions& options);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_LISTENER_H_
