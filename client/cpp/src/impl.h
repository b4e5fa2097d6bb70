// What the client holds, and how every call is made.
#ifndef NIBBLE_CLIENT_SRC_IMPL_H_
#define NIBBLE_CLIENT_SRC_IMPL_H_

#include <grpcpp/client_context.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "client/cpp/src/channel.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "nibble/client.h"
#include "nibble/v1/linear.grpc.pb.h"
#include "nibble/v1/weights.grpc.pb.h"

namespace nibble::client {

// The same code and message.
absl::Status FromGrpc(const grpc::Status& status);

using TimePoint = std::chrono::system_clock::time_point;

// The context of one attempt: deadline, token, and the caller's stop request while it lives.
class CallScope {
 public:
  CallScope(const std::string& token, const std::optional<TimePoint>& deadline,
            const CallOptions& options);
  grpc::ClientContext& context() { return context_; }

 private:
  struct Cancel {
    grpc::ClientContext* context;
    void operator()() const { context->TryCancel(); }
  };
  grpc::ClientContext context_;
  std::optional<std::stop_callback<Cancel>> on_stop_;
};

// Fills `chunk` with the next `size` bytes of what is uploaded.
using ReadChunk = std::function<absl::Status(int64_t size, std::string& chunk)>;

struct Client::Impl {
  ClientOptions options;
  std::string control_token;
  std::shared_ptr<grpc::Channel> data_channel;
  std::shared_ptr<grpc::Channel> control_channel;  // null without a control address
  std::unique_ptr<v1::Linear::Stub> linear;
  std::unique_ptr<v1::Weights::Stub> weights;
  std::unique_ptr<grpc::health::v1::Health::Stub> data_health;
  std::unique_ptr<grpc::health::v1::Health::Stub> control_health;

  const std::string& Token(Plane plane) const {
    return plane == Plane::kData ? options.bearer_token : control_token;
  }
  // The point in time from the call's own deadline, or else from `standard`.
  static std::optional<TimePoint> DeadlineOf(const CallOptions& call,
                                             std::chrono::milliseconds standard);
  // kFailedPrecondition for the control plane without an address.
  absl::Status Reachable(Plane plane) const;

  // One attempt, with no deadline but the caller's.
  absl::Status CallOnce(Plane plane, const CallOptions& call,
                        const std::function<grpc::Status(grpc::ClientContext&)>& attempt) const;
  // Attempts until one is answered with anything but UNAVAILABLE, the policy ends, or `may_repeat`
  // (empty: always) says no.
  absl::Status CallRepeatable(Plane plane, const CallOptions& call,
                              const std::function<grpc::Status(grpc::ClientContext&)>& attempt,
                              const std::function<bool()>& may_repeat = {}) const;
  absl::StatusOr<v1::UploadResponse> Upload(v1::UploadHeader header, int64_t bytes,
                                            const ReadChunk& read,
                                            const UploadProgress& on_progress,
                                            const CallOptions& call) const;
};

}  // namespace nibble::client

#endif  // NIBBLE_CLIENT_SRC_IMPL_H_
