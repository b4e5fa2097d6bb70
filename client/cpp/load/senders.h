// Requests over gRPC, on a completion queue that the polling thread drives.
#ifndef NIBBLE_CLIENT_LOAD_SENDERS_H_
#define NIBBLE_CLIENT_LOAD_SENDERS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "client/cpp/load/exchange.h"
#include "client/cpp/load/operation.h"
#include "nibble/client.h"

namespace nibble::load {

struct SenderOptions {
  client::ClientOptions connection;
  // Of this sender, one or more. Exchanges take them in turn.
  int connections = 1;
  // Of each unary call; a stream has none.
  int64_t deadline_ms = 30000;
};

// Both connect at once, and answer kUnavailable when a connection is not there after ten seconds.
// `operation` outlives the sender; exchanges in flight end before it does.

// One unary call a request.
absl::StatusOr<std::unique_ptr<Sender>> MakeUnarySender(const SenderOptions& options,
                                                        const Operation& operation);

// One MatmulStream a connection, opened by the first request and again after it broke; `operation`
// makes messages of streams. A stream that ends gives its status to all that it has in flight.
absl::StatusOr<std::unique_ptr<Sender>> MakeStreamSender(const SenderOptions& options,
                                                         const Operation& operation);

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_SENDERS_H_
