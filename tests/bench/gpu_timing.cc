#include "tests/bench/gpu_timing.h"

#include <algorithm>
#include <vector>

#include "fmt/format.h"

namespace nibble::bench {
namespace {

constexpr int kWarmUps = 3;
constexpr int kReplays = 15;

// Median µs of each of the things that these put on the stream, one after the other in turn.
StatusOr<std::vector<double>> MediansUs(cudaStream_t stream,
                                        const std::vector<std::function<cudaError_t()>>& enqueue) {
  cudaEvent_t begin;
  cudaEvent_t end;
  NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaEventCreate(&begin), "cudaEventCreate"));
  NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaEventCreate(&end), "cudaEventCreate"));
  std::vector<std::vector<double>> times_us(enqueue.size());
  for (int replay = 0; replay < kWarmUps + kReplays; ++replay) {
    for (size_t i = 0; i < enqueue.size(); ++i) {
      NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaEventRecord(begin, stream), "cudaEventRecord"));
      NIBBLE_RETURN_IF_ERROR(CheckCuda(enqueue[i](), "what is timed"));
      NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaEventRecord(end, stream), "cudaEventRecord"));
      NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaEventSynchronize(end), "what is timed"));
      float milliseconds = 0.0f;
      NIBBLE_RETURN_IF_ERROR(
          CheckCuda(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime"));
      if (replay >= kWarmUps) times_us[i].push_back(milliseconds * 1e3);
    }
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::vector<double> medians_us;
  for (std::vector<double>& times : times_us) {
    std::sort(times.begin(), times.end());
    medians_us.push_back(times[times.size() / 2]);
  }
  return medians_us;
}

StatusOr<cudaGraphExec_t> Capture(cudaStream_t stream, const GraphOf& of) {
  // Once outside a capture: algorithms are chosen, kernels loaded.
  NIBBLE_RETURN_IF_ERROR(of.launch(0));
  NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaStreamSynchronize(stream), "the first launch"));
  NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                                   "cudaStreamBeginCapture"));
  Status launched;
  for (int i = 0; i < of.launches && launched.ok(); ++i) launched = of.launch(i);
  cudaGraph_t graph = nullptr;
  const Status captured = CheckCuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  NIBBLE_RETURN_IF_ERROR(launched);
  NIBBLE_RETURN_IF_ERROR(captured);
  cudaGraphExec_t executable = nullptr;
  NIBBLE_RETURN_IF_ERROR(
      CheckCuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate"));
  cudaGraphDestroy(graph);
  return executable;
}

}  // namespace

Status CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(fmt::format("{}: {}", what, cudaGetErrorString(error)));
}

StatusOr<double> TimeByGraph(cudaStream_t stream, int launches,
                             const std::function<Status(int)>& launch) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<double> us, TimeByTurns(stream, {{launches, launch}}));
  return us.front();
}

StatusOr<std::vector<double>> TimeByTurns(cudaStream_t stream, const std::vector<GraphOf>& graphs) {
  std::vector<cudaGraphExec_t> executables;
  std::vector<std::function<cudaError_t()>> enqueue;
  for (const GraphOf& graph : graphs) {
    NIBBLE_ASSIGN_OR_RETURN(const cudaGraphExec_t executable, Capture(stream, graph));
    executables.push_back(executable);
    enqueue.emplace_back([=] { return cudaGraphLaunch(executable, stream); });
  }
  StatusOr<std::vector<double>> us = MediansUs(stream, enqueue);
  for (const cudaGraphExec_t executable : executables) cudaGraphExecDestroy(executable);
  NIBBLE_RETURN_IF_ERROR(us.status());
  for (size_t i = 0; i < graphs.size(); ++i) (*us)[i] /= graphs[i].launches;
  return us;
}

StatusOr<double> MeasureCopyTbs(cudaStream_t stream) {
  constexpr size_t kBytes = size_t{2} << 30;
  char* memory = nullptr;
  NIBBLE_RETURN_IF_ERROR(CheckCuda(cudaMalloc(&memory, 2 * kBytes), "cudaMalloc"));
  // Not in a graph: there a copy is the copy engine's.
  const StatusOr<std::vector<double>> copy_us = MediansUs(
      stream, {[&] {
        return cudaMemcpyAsync(memory + kBytes, memory, kBytes, cudaMemcpyDeviceToDevice, stream);
      }});
  cudaFree(memory);
  NIBBLE_RETURN_IF_ERROR(copy_us.status());
  return 2.0 * static_cast<double>(kBytes) / (copy_us->front() * 1e6);
}

}  // namespace nibble::bench
