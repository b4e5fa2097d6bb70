#include "tests/bench/gpu_timing.h"

#include <algorithm>
#include <vector>

#include "fmt/format.h"

namespace nibble::bench {
namespace {

constexpr int kWarmUps = 3;
constexpr int kReplays = 15;

// Median µs of what `enqueue` puts on the stream.
StatusOr<double> MedianUs(cudaStream_t stream, const std::function<cudaError_t()>& enqueue) {
  cudaEvent_t begin;
  cudaEvent_t end;
  NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaEventCreate(&begin), "cudaEventCreate"));
  NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaEventCreate(&end), "cudaEventCreate"));
  std::vector<double> times_us;
  for (int replay = 0; replay < kWarmUps + kReplays; ++replay) {
    NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaEventRecord(begin, stream), "cudaEventRecord"));
    NIBBLE_RETURN_IF_ERROR(CheckCuda(enqueue(), "what is timed"));
    NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaEventRecord(end, stream), "cudaEventRecord"));
    NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaEventSynchronize(end), "what is timed"));
    float milliseconds = 0.0f;
    NIBBLE_RETURN_IF_ERROR(
        CheckCuda(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime"));
    if (replay >= kWarmUps) times_us.push_back(milliseconds * 1e3);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times_us.begin(), times_us.end());
  return times_us[times_us.size() / 2];
}

}  // namespace

Status CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(fmt::format("{}: {}", what, cudaGetErrorString(error)));
}

StatusOr<double> TimeByGraph(cudaStream_t stream, int launches,
                             const std::function<Status(int)>& launch) {
  // Once outside a capture: algorithms are chosen, kernels loaded.
  NIBBLE_RETURN_IF_ERROR(launch(0));
  NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaStreamSynchronize(stream), "the first launch"));
  NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                                   "cudaStreamBeginCapture"));
  Status launched;
  for (int i = 0; i < launches && launched.ok(); ++i) launched = launch(i);
  cudaGraph_t graph = nullptr;
  const Status captured = CheckCuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  NIBBLE_RETURN_IF_ERROR(launched);
  NIBBLE_RETURN_IF_ERROR(captured);
  cudaGraphExec_t executable = nullptr;
  NIBBLE_RETURN_IF_ERROR(
      CheckCuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate"));
  const StatusOr<double> replay_us =
      MedianUs(stream, [&] { return cudaGraphLaunch(executable, stream); });
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  NIBBLE_RETURN_IF_ERROR(replay_us.status());
  return *replay_us / launches;
}

StatusOr<double> MeasureCopyTbs(cudaStream_t stream) {
  constexpr size_t kBytes = size_t{2} << 30;
  char* memory = nullptr;
  NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaMalloc(&memory, 2 * kBytes), "cudaMalloc"));
  // Not in a graph: there a copy is the copy engine's.
  const StatusOr<double> copy_us = MedianUs(stream, [&] {
    return cudaMemcpyAsync(memory + kBytes, memory, kBytes, cudaMemcpyDeviceToDevice, stream);
  });
  cudaFree(memory);
  NIBBLE_RETURN_IF_ERROR(copy_us.status());
  return 2.0 * static_cast<double>(kBytes) / (*copy_us * 1e6);
}

}  // namespace nibble::bench
