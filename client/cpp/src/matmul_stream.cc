#include <atomic>
#include <utility>

#include "client/cpp/src/impl.h"

namespace nibble::client {
namespace {

class GrpcMatmulStream final : public MatmulStream {
 public:
  GrpcMatmulStream(v1::Linear::Stub& stub, const std::string& token,
                   const std::optional<TimePoint>& deadline, const CallOptions& options)
      : scope_(token, deadline, options), stream_(stub.MatmulStream(&scope_.context())) {}

  ~GrpcMatmulStream() override {
    if (!finished_) {
      scope_.context().TryCancel();
      stream_->Finish();
    }
  }

  absl::Status Send(const v1::MatmulRequest& request) override {
    if (closed_) return absl::FailedPreconditionError("the stream was closed for sending");
    if (stream_->Write(request)) return absl::OkStatus();
    return absl::UnavailableError("the stream has ended; Receive gives the reason");
  }

  absl::StatusOr<std::optional<v1::MatmulStreamResponse>> Receive() override {
    v1::MatmulStreamResponse response;
    if (!finished_ && stream_->Read(&response)) return response;
    if (!finished_) {
      end_ = FromGrpc(stream_->Finish());
      finished_ = true;
    }
    if (!end_.ok()) return end_;
    return std::nullopt;
  }

  absl::Status Close() override {
    if (closed_.exchange(true)) return absl::OkStatus();
    if (stream_->WritesDone()) return absl::OkStatus();
    return absl::UnavailableError("the stream has ended; Receive gives the reason");
  }

  void Cancel() override { scope_.context().TryCancel(); }

 private:
  CallScope scope_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::MatmulRequest, v1::MatmulStreamResponse>> stream_;
  std::atomic<bool> closed_{false};
  // Of the receiving thread.
  bool finished_ = false;
  absl::Status end_;
};

}  // namespace

std::unique_ptr<MatmulStream> Client::OpenMatmulStream(const CallOptions& options) {
  return std::make_unique<GrpcMatmulStream>(*impl_->linear, impl_->Token(Plane::kData),
                                            Impl::DeadlineOf(options, std::chrono::milliseconds(0)),
                                            options);
}

}  // namespace nibble::client
