#include "client/cpp/load/shared_region.h"

#include <fcntl.h>
#include <grpcpp/client_context.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "client/cpp/src/channel.h"
#include "fmt/format.h"
#include "nibble/v1/linear.grpc.pb.h"

namespace nibble::load {
namespace {

// Of each tensor's beginning.
constexpr int64_t kAlignment = 64;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

class AttachedRegion final : public SharedRegion {
 public:
  AttachedRegion(std::shared_ptr<grpc::Channel> channel, const client::ClientOptions& connection)
      : stub_(v1::Linear::NewStub(channel)) {
    if (!connection.bearer_token.empty()) {
      context_.AddMetadata("authorization", "Bearer " + connection.bearer_token);
    }
    call_ = stub_->AttachMemory(&context_);
  }

  ~AttachedRegion() override {
    if (memory_ != MAP_FAILED) munmap(memory_, mapped_bytes_);
    if (finished_) return;
    context_.TryCancel();
    call_->Finish();
  }

  absl::Status Map(const Workload& workload, int64_t exchanges) {
    int64_t bytes = 0;
    for (const auto& [k, activations] : workload.all_activations()) {
      tensors_.input_offset[k] = bytes;
      bytes += Aligned(static_cast<int64_t>(activations.bytes.size()));
    }
    tensors_.output_offset = bytes;
    tensors_.output_stride = Aligned(workload.LargestOutputBytes());
    bytes += tensors_.output_stride * exchanges;

    v1::AttachMemoryRequest request;
    request.set_bytes(static_cast<uint64_t>(bytes));
    v1::AttachMemoryResponse reply;
    if (!call_->Write(request) || !call_->Read(&reply)) {
      finished_ = true;
      const grpc::Status status = call_->Finish();
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                          fmt::format("shared memory: {}", status.error_message()));
    }
    if (reply.bytes() < request.bytes()) {
      return absl::InternalError(fmt::format("shared memory: expected {} bytes, received {}",
                                             request.bytes(), reply.bytes()));
    }
    const int fd = open(reply.path().c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return MapError(reply.path());
    mapped_bytes_ = reply.bytes();
    memory_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const int error = errno;
    close(fd);
    errno = error;
    if (memory_ == MAP_FAILED) return MapError(reply.path());
    tensors_.region = reply.region();
    tensors_.memory = static_cast<const char*>(memory_);
    for (const auto& [k, activations] : workload.all_activations()) {
      std::memcpy(static_cast<char*>(memory_) + tensors_.input_offset[k], activations.bytes.data(),
                  activations.bytes.size());
    }
    return absl::OkStatus();
  }

  const SharedTensors& tensors() const override { return tensors_; }

 private:
  static absl::Status MapError(const std::string& path) {
    return absl::FailedPreconditionError(
        fmt::format("shared memory: cannot map {} ({}); the client has to run on the server's "
                    "host, as its user",
                    path, std::strerror(errno)));
  }

  const std::unique_ptr<v1::Linear::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AttachMemoryRequest, v1::AttachMemoryResponse>>
      call_;
  bool finished_ = false;
  void* memory_ = MAP_FAILED;
  size_t mapped_bytes_ = 0;
  SharedTensors tensors_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::Attach(
    const client::ClientOptions& connection, const Workload& workload, int64_t exchanges) {
  auto channel = client::OpenChannel(connection, connection.address, false);
  if (!channel.ok()) return channel.status();
  auto region = std::make_unique<AttachedRegion>(*channel, connection);
  if (absl::Status status = region->Map(workload, exchanges); !status.ok()) return status;
  return region;
}

}  // namespace nibble::load
