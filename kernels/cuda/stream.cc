#include "kernels/cuda/stream.h"

#include <utility>

#include "fmt/format.h"

namespace nibble::cuda {

StatusOr<std::unique_ptr<Buffer>> StagingBuffer::Create(std::shared_ptr<Context> context,
                                                        uint64_t bytes) {
  constexpr uint64_t kLargest = uint64_t{1} << 62;
  if (bytes > kLargest) {
    return absl::ResourceExhaustedError(
        fmt::format("host memory: a staging buffer needs {} bytes", bytes));
  }
  const DeviceGuard guard(context->ordinal());
  void* data = nullptr;
  const uint64_t size = core::AlignedSize(bytes);
  NIBBLE_RETURN_IF_ERROR(
      context->Check(cudaHostAlloc(&data, size, cudaHostAllocMapped | cudaHostAllocPortable),
                     fmt::format("{} bytes of pinned host memory", size)));
  return std::unique_ptr<Buffer>(new StagingBuffer(std::move(context), data, bytes));
}

StagingBuffer::~StagingBuffer() {
  const DeviceGuard guard(context_->ordinal());
  (void)context_->Check(cudaFreeHost(data()), "cudaFreeHost");
}

StatusOr<std::unique_ptr<Stream>> CudaStream::Create(std::shared_ptr<Context> context) {
  const DeviceGuard guard(context->ordinal());
  std::unique_ptr<CudaStream> stream(new CudaStream(context));
  NIBBLE_RETURN_IF_ERROR(
      context->Check(cudaStreamCreateWithFlags(&stream->handle_, cudaStreamNonBlocking),
                     "cudaStreamCreateWithFlags"));
  for (cudaEvent_t& event : stream->events_) {
    NIBBLE_RETURN_IF_ERROR(context->Check(cudaEventCreate(&event), "cudaEventCreate"));
  }
  return std::unique_ptr<Stream>(std::move(stream));
}

CudaStream::~CudaStream() {
  const DeviceGuard guard(context_->ordinal());
  for (cudaEvent_t event : events_) {
    if (event != nullptr) (void)context_->Check(cudaEventDestroy(event), "cudaEventDestroy");
  }
  if (handle_ != nullptr) (void)context_->Check(cudaStreamDestroy(handle_), "cudaStreamDestroy");
}

Status CudaStream::Copy(void* to, const void* from, uint64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  const DeviceGuard guard(context_->ordinal());
  return context_->Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle_), "a copy");
}

Status CudaStream::Synchronize() {
  const DeviceGuard guard(context_->ordinal());
  return context_->Check(cudaStreamSynchronize(handle_), "a kernel or copy");
}

Status CudaStream::CheckSlot(int slot) {
  if (slot >= 0 && slot < kSlots) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("slot: expected 0 to {}; received {}", kSlots - 1, slot));
}

Status CudaStream::Mark(int slot) {
  NIBBLE_RETURN_IF_ERROR(CheckSlot(slot));
  const DeviceGuard guard(context_->ordinal());
  NIBBLE_RETURN_IF_ERROR(
      context_->Check(cudaEventRecord(events_[slot], handle_), "cudaEventRecord"));
  marked_[slot] = true;
  return absl::OkStatus();
}

StatusOr<double> CudaStream::MicrosecondsBetween(int begin_slot, int end_slot) {
  for (const int slot : {begin_slot, end_slot}) {
    NIBBLE_RETURN_IF_ERROR(CheckSlot(slot));
    if (!marked_[slot]) {
      return absl::InvalidArgumentError(
          fmt::format("slot: expected a marked one; received {}", slot));
    }
  }
  const DeviceGuard guard(context_->ordinal());
  float milliseconds = 0.0f;
  NIBBLE_RETURN_IF_ERROR(
      context_->Check(cudaEventElapsedTime(&milliseconds, events_[begin_slot], events_[end_slot]),
                      "cudaEventElapsedTime"));
  return milliseconds * 1e3;
}

}  // namespace nibble::cuda
