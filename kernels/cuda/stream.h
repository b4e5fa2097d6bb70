// Streams and buffers of the CUDA backend.
#ifndef NIBBLE_KERNELS_CUDA_STREAM_H_
#define NIBBLE_KERNELS_CUDA_STREAM_H_

#include <memory>

#include "kernels/cuda/context.h"
#include "nibble/backend.h"

namespace nibble::cuda {

class CudaBuffer final : public Buffer {
 public:
  CudaBuffer(DeviceMemory memory, uint64_t bytes)
      : Buffer(memory.data(), bytes), memory_(std::move(memory)) {}

 private:
  DeviceMemory memory_;
};

// Pinned host memory, mapped into every device's address space. Outside the device's budget.
class StagingBuffer final : public Buffer {
 public:
  static StatusOr<std::unique_ptr<Buffer>> Create(std::shared_ptr<Context> context, uint64_t bytes);
  ~StagingBuffer() override;

 private:
  StagingBuffer(std::shared_ptr<Context> context, void* data, uint64_t bytes)
      : Buffer(data, bytes), context_(std::move(context)) {}

  std::shared_ptr<Context> context_;
};

class CudaStream final : public Stream {
 public:
  static StatusOr<std::unique_ptr<Stream>> Create(std::shared_ptr<Context> context);
  ~CudaStream() override;

  Status Copy(void* to, const void* from, uint64_t bytes) override;
  Status Synchronize() override;
  Status Mark(int slot) override;
  StatusOr<double> MicrosecondsBetween(int begin_slot, int end_slot) override;

  const Context* context() const { return context_.get(); }
  cudaStream_t handle() const { return handle_; }

 private:
  static constexpr int kSlots = 4;

  explicit CudaStream(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  static Status CheckSlot(int slot);

  std::shared_ptr<Context> context_;
  cudaStream_t handle_ = nullptr;
  cudaEvent_t events_[kSlots] = {};
  bool marked_[kSlots] = {};
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_STREAM_H_
