// What the senders share: channels, and the completion queue of one thread.
#ifndef NIBBLE_CLIENT_LOAD_CONNECTIONS_H_
#define NIBBLE_CLIENT_LOAD_CONNECTIONS_H_

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/load/exchange.h"
#include "client/cpp/load/senders.h"

namespace nibble::load {

using Stub = grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer>;

// A connection each, all there.
absl::StatusOr<std::vector<std::unique_ptr<Stub>>> Connect(const SenderOptions& options);

// Token and deadline (none: 0) of a call.
void Prepare(grpc::ClientContext& context, const SenderOptions& options, int64_t deadline_ms);

// Puts a status that is not OK into an answer.
void SetError(const grpc::Status& status, Answer& answer);

struct Event {
  void* tag = nullptr;
  bool ok = false;
};
// The next event of `queue`; no tag after `wait_ns`, or once the queue is shut down.
Event NextEvent(grpc::CompletionQueue& queue, int64_t wait_ns);

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_CONNECTIONS_H_
