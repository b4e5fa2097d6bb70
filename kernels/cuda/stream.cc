#include "kernels/cuda/stream.h"

#include <chrono>
#include <thread>
#include <utility>

#include "fmt/format.h"
#include "kernels/cuda/launch/copy.h"

namespace nibble::cuda {
namespace {

// In a graph a kernel copies rows of this size sooner than a copy engine does, which the kernels
// around it wait for; launched one by one it is the other way round. H200, copy in, NF4 GEMV, y
// written to mapped memory, host to host:
//
//   N x K, M           launches: memcpy  kernel    graph: memcpy  kernel
//   4096x4096, 1                 21.1 us  23.1             18.8    17.6
//   4096x4096, 8                 21.1     24.6             25.6    20.1
//   4096x4096, 64                69.3     71.8             67.6    62.3
//   28672x4096, 1                42.5     46.4             40.4    40.2
//   28672x4096, 8                46.4     45.4             49.5    42.7
//   28672x4096, 64              230      230              226     223
//
// Two event records in a graph are 3 us of it. A copy of 4 MiB alone: 84.8 against 90.7 us.
constexpr uint64_t kKernelCopyBytes = uint64_t{1} << 20;

// How long a thread waits awake for the device. Falling asleep and waking takes 30 to 60 us (H200,
// 16 cores), as long as a small batch; on a small machine others need the core.
std::chrono::microseconds SpinTime() {
  constexpr unsigned kManyCores = 8;
  static const bool many = std::thread::hardware_concurrency() >= kManyCores;
  return std::chrono::microseconds(many ? 1000 : 50);
}

}  // namespace

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

CudaGraph::~CudaGraph() {
  const DeviceGuard guard(context_->ordinal());
  (void)context_->Check(cudaGraphExecDestroy(handle_), "cudaGraphExecDestroy");
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
  NIBBLE_RETURN_IF_ERROR(context->Check(
      cudaEventCreateWithFlags(&stream->done_, cudaEventBlockingSync | cudaEventDisableTiming),
      "cudaEventCreateWithFlags"));
  return std::unique_ptr<Stream>(std::move(stream));
}

CudaStream::~CudaStream() {
  const DeviceGuard guard(context_->ordinal());
  for (cudaEvent_t event : {events_[0], events_[1], events_[2], events_[3], done_}) {
    if (event != nullptr) (void)context_->Check(cudaEventDestroy(event), "cudaEventDestroy");
  }
  if (handle_ != nullptr) (void)context_->Check(cudaStreamDestroy(handle_), "cudaStreamDestroy");
}

Status CudaStream::Copy(void* to, const void* from, uint64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  const DeviceGuard guard(context_->ordinal());
  if (capturing_ && bytes <= kKernelCopyBytes) {
    return context_->Check(LaunchCopy(from, static_cast<int64_t>(bytes), to, handle_), "a copy");
  }
  return context_->Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle_), "a copy");
}

Status CudaStream::Synchronize() {
  const DeviceGuard guard(context_->ordinal());
  const auto end = std::chrono::steady_clock::now() + SpinTime();
  cudaError_t error = cudaErrorNotReady;
  while (error == cudaErrorNotReady && std::chrono::steady_clock::now() < end) {
    error = cudaStreamQuery(handle_);
  }
  if (error == cudaErrorNotReady) {
    cudaGetLastError();  // not an error, but kept as one
    error = cudaEventRecord(done_, handle_);
    if (error == cudaSuccess) error = cudaEventSynchronize(done_);
  }
  return context_->Check(error, "a kernel or copy");
}

Status CudaStream::CheckSlot(int slot) {
  if (slot >= 0 && slot < kSlots) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("slot: expected 0 to {}; received {}", kSlots - 1, slot));
}

Status CudaStream::Mark(int slot) {
  NIBBLE_RETURN_IF_ERROR(CheckSlot(slot));
  const DeviceGuard guard(context_->ordinal());
  // In a graph an event is recorded by a node of its own, at every launch.
  const unsigned flags = capturing_ ? cudaEventRecordExternal : cudaEventRecordDefault;
  NIBBLE_RETURN_IF_ERROR(context_->Check(cudaEventRecordWithFlags(events_[slot], handle_, flags),
                                         "cudaEventRecordWithFlags"));
  (capturing_ ? captured_marks_ : marked_) |= 1u << slot;
  return absl::OkStatus();
}

StatusOr<double> CudaStream::MicrosecondsBetween(int begin_slot, int end_slot) {
  for (const int slot : {begin_slot, end_slot}) {
    NIBBLE_RETURN_IF_ERROR(CheckSlot(slot));
    if ((marked_ >> slot & 1u) == 0) {
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

Status CudaStream::BeginCapture() {
  if (capturing_) {
    return absl::FailedPreconditionError("stream: expected one that does not record; it does");
  }
  const DeviceGuard guard(context_->ordinal());
  NIBBLE_RETURN_IF_ERROR(context_->Check(
      cudaStreamBeginCapture(handle_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"));
  capturing_ = true;
  captured_marks_ = 0;
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<Graph>> CudaStream::EndCapture() {
  if (!capturing_) {
    return absl::FailedPreconditionError("stream: expected one that records; it does not");
  }
  const DeviceGuard guard(context_->ordinal());
  capturing_ = false;
  cudaGraph_t recorded = nullptr;
  NIBBLE_RETURN_IF_ERROR(
      context_->Check(cudaStreamEndCapture(handle_, &recorded), "cudaStreamEndCapture"));
  cudaGraphExec_t handle = nullptr;
  const Status made =
      context_->Check(cudaGraphInstantiate(&handle, recorded, 0), "cudaGraphInstantiate");
  (void)context_->Check(cudaGraphDestroy(recorded), "cudaGraphDestroy");
  NIBBLE_RETURN_IF_ERROR(made);
  auto graph = std::make_unique<CudaGraph>(context_, handle, captured_marks_);
  NIBBLE_RETURN_IF_ERROR(context_->Check(cudaGraphUpload(handle, handle_), "cudaGraphUpload"));
  return graph;
}

Status CudaStream::Launch(Graph& graph) {
  const auto* own = dynamic_cast<const CudaGraph*>(&graph);
  if (own == nullptr || own->context() != context_.get()) {
    return absl::InvalidArgumentError(
        fmt::format("graph: expected one of {}; received one of another device", context_->id()));
  }
  const DeviceGuard guard(context_->ordinal());
  NIBBLE_RETURN_IF_ERROR(
      context_->Check(cudaGraphLaunch(own->handle(), handle_), "cudaGraphLaunch"));
  marked_ |= own->marks();
  return absl::OkStatus();
}

}  // namespace nibble::cuda
