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

class CudaGraph final : public Graph {
 public:
  CudaGraph(std::shared_ptr<Context> context, cudaGraphExec_t handle, unsigned marks)
      : context_(std::move(context)), handle_(handle), marks_(marks) {}
  ~CudaGraph() override;

  const Context* context() const { return context_.get(); }
  cudaGraphExec_t handle() const { return handle_; }
  // Slots marked in it, bit i for slot i.
  unsigned marks() const { return marks_; }

 private:
  std::shared_ptr<Context> context_;
  cudaGraphExec_t handle_;
  unsigned marks_;
};

class CudaStream final : public Stream {
 public:
  static StatusOr<std::unique_ptr<Stream>> Create(std::shared_ptr<Context> context);
  ~CudaStream() override;

  Status Copy(void* to, const void* from, uint64_t bytes) override;
  Status Synchronize() override;
  Status Mark(int slot) override;
  StatusOr<double> MicrosecondsBetween(int begin_slot, int end_slot) override;
  Status BeginCapture() override;
  StatusOr<std::unique_ptr<Graph>> EndCapture() override;
  Status Launch(Graph& graph) override;

  const Context* context() const { return context_.get(); }
  cudaStream_t handle() const { return handle_; }

 private:
  static constexpr int kSlots = 4;

  explicit CudaStream(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  static Status CheckSlot(int slot);

  std::shared_ptr<Context> context_;
  cudaStream_t handle_ = nullptr;
  cudaEvent_t events_[kSlots] = {};
  cudaEvent_t done_ = nullptr;  // what Synchronize sleeps on
  unsigned marked_ = 0;         // bit i: slot i has been marked
  bool capturing_ = false;
  unsigned captured_marks_ = 0;
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_STREAM_H_
