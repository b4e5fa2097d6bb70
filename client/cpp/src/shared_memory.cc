#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "client/cpp/src/impl.h"
#include "nibble/client_memory.h"
#include "nibble/client_tensor.h"

namespace nibble::client {
namespace {

// Keeps its AttachMemory call open, and with it the region.
class AttachedMemory final : public SharedMemory {
 public:
  AttachedMemory(std::shared_ptr<grpc::Channel> channel, const std::string& token,
                 const CallOptions& options)
      : stub_(v1::Linear::NewStub(channel)),
        scope_(token, std::nullopt, options),
        call_(stub_->AttachMemory(&scope_.context())) {}

  ~AttachedMemory() override {
    if (memory_ != MAP_FAILED) munmap(memory_, region_.bytes());
    if (finished_) return;
    scope_.context().TryCancel();
    call_->Finish();
  }

  absl::Status Attach(uint64_t bytes) {
    v1::AttachMemoryRequest request;
    request.set_bytes(bytes);
    if (!call_->Write(request) || !call_->Read(&region_)) {
      finished_ = true;
      absl::Status status = FromGrpc(call_->Finish());
      return status.ok() ? absl::InternalError("AttachMemory: the server ended it without a region")
                         : status;
    }
    if (region_.bytes() < bytes) {
      return absl::InternalError("AttachMemory: expected at least " + std::to_string(bytes) +
                                 " bytes, received " + std::to_string(region_.bytes()));
    }
    const int fd = open(region_.path().c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return MapError(errno);
    memory_ = mmap(nullptr, region_.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const int error = errno;
    close(fd);
    return memory_ == MAP_FAILED ? MapError(error) : absl::OkStatus();
  }

  std::span<std::byte> bytes() const override {
    return {static_cast<std::byte*>(memory_), static_cast<size_t>(region_.bytes())};
  }

  absl::StatusOr<v1::SharedSlice> Slice(uint64_t offset, uint64_t length) const override {
    if (offset > region_.bytes() || length > region_.bytes() - offset) {
      return absl::InvalidArgumentError(
          "shared memory: expected bytes within its " + std::to_string(region_.bytes()) +
          ", received offset " + std::to_string(offset) + ", length " + std::to_string(length));
    }
    v1::SharedSlice slice;
    slice.set_region(region_.region());
    slice.set_offset(offset);
    slice.set_length(length);
    return slice;
  }

  absl::StatusOr<v1::Tensor> TensorAt(uint64_t offset, std::span<const int64_t> shape,
                                      v1::DType dtype) const override {
    const int64_t element_bytes = DTypeBytes(dtype);
    if (element_bytes == 0) {
      return absl::InvalidArgumentError("dtype: expected a type of tensors, received " +
                                        std::to_string(static_cast<int>(dtype)));
    }
    const absl::StatusOr<int64_t> count = ElementCount(shape);
    if (!count.ok()) return count.status();
    // More than any memory has; the product below then stays within 64 bits.
    if (*count > static_cast<int64_t>(region_.bytes())) {
      return absl::InvalidArgumentError("shape: expected a tensor within the " +
                                        std::to_string(region_.bytes()) + " bytes, received " +
                                        std::to_string(*count) + " elements");
    }
    absl::StatusOr<v1::SharedSlice> slice =
        Slice(offset, static_cast<uint64_t>(*count) * static_cast<uint64_t>(element_bytes));
    if (!slice.ok()) return slice.status();
    v1::Tensor tensor;
    tensor.set_dtype(dtype);
    tensor.mutable_shape()->Add(shape.begin(), shape.end());
    *tensor.mutable_shared() = *std::move(slice);
    return tensor;
  }

  absl::StatusOr<std::span<std::byte>> BytesOf(const v1::Tensor& tensor) const override {
    const v1::SharedSlice& at = tensor.shared();
    if (!tensor.has_shared() || at.region() != region_.region()) {
      return absl::InvalidArgumentError(
          "tensor: expected one in this shared memory, received one " +
          std::string(tensor.has_shared() ? "in another" : "that travelled"));
    }
    const absl::StatusOr<v1::SharedSlice> slice = Slice(at.offset(), at.length());
    if (!slice.ok()) return slice.status();
    return bytes().subspan(at.offset(), at.length());
  }

 private:
  absl::Status MapError(int error) const {
    return absl::FailedPreconditionError(
        "AttachMemory: cannot map " + region_.path() + " (" + std::strerror(error) +
        "); the client has to run on the server's host, as its user");
  }

  const std::unique_ptr<v1::Linear::Stub> stub_;
  CallScope scope_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::AttachMemoryRequest, v1::AttachMemoryResponse>>
      call_;
  bool finished_ = false;
  v1::AttachMemoryResponse region_;
  void* memory_ = MAP_FAILED;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SharedMemory>> Client::AttachMemory(uint64_t bytes,
                                                                   const CallOptions& options) {
  auto memory =
      std::make_unique<AttachedMemory>(impl_->data_channel, impl_->Token(Plane::kData), options);
  if (absl::Status status = memory->Attach(bytes); !status.ok()) return status;
  return memory;
}

}  // namespace nibble::client
