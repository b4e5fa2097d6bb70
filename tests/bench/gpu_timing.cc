#include "tests/bench/gpu_timing.h"

#include <algorithm>
#include <vector>

#include "fmt/format.h"

namespace nibble::bench {
namespace {

constexpr int kWarmUps = 3;
constexpr int kReplays = 15;

StatusOr<double> MedianReplayUs(cudaStream_t stream, cudaGraphExec_t graph) {
  cudaEvent_t begin;
  cudaEvent_t end;
  NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaEventCreate(&begin), "cudaEventCreate"));
  NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaEventCreate(&end), "cudaEventCreate"));
  std::vector<double> times_us;
  for (int replay = 0; replay < kWarmUps + kReplays; ++replay) {
    NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaEventRecord(begin, stream), "cudaEventRecord"));
    NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaGraphLaunch(graph, stream), "cudaGraphLaunch"));
    NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaEventRecord(end, stream), "cudaEventRecord"));
    NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaEventSynchronize(end), "a replay"));
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
  const StatusOr<double> replay_us = MedianReplayUs(stream, executable);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  NIBBLE_RETURN_IF_ERROR(replay_us.status());
  return *replay_us / launches;
}

StatusOr<double> MeasureCopyTbs(cudaStream_t stream) {
  constexpr size_t kBytes = size_t{2} << 30;
  char* memory = nullptr;
  NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaMalloc(&memory, 2 * kBytes), "cudaMalloc"));
  const StatusOr<double> us = TimeByGraph(stream, 4, [&](int) {
    return CheckCuda(
        cudaMemcpyAsync(memory + kBytes, memory, kBytes, cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpyAsync");
  });
  cudaFree(memory);
  NIBBLE_RETURN_IF_ERROR(us.status());
  return 2.0 * static_cast<double>(kBytes) / (*us * 1e6);
}

}  // namespace nibble::bench
