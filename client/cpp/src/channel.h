// Connections.
#ifndef NIBBLE_CLIENT_SRC_CHANNEL_H_
#define NIBBLE_CLIENT_SRC_CHANNEL_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "nibble/client.h"

namespace nibble::client {

// A channel to one plane, with a connection of its own; kInvalidArgument for an address that is
// none.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const ClientOptions& options,
                                                           const std::string& address,
                                                           bool round_robin);

}  // namespace nibble::client

#endif  // NIBBLE_CLIENT_SRC_CHANNEL_H_
