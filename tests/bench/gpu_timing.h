// Device time of one launch by CUDA-graph replay.
#ifndef NIBBLE_TESTS_BENCH_GPU_TIMING_H_
#define NIBBLE_TESTS_BENCH_GPU_TIMING_H_

#include <cuda_runtime.h>

#include <functional>
#include <vector>

#include "nibble/status.h"

namespace nibble::bench {

// Captures `launches` calls of launch(i), i = 0.., into one graph, replays it and returns the
// median µs of one launch. Launches that rotate over more memory than the L2 holds find it cold.
StatusOr<double> TimeByGraph(cudaStream_t stream, int launches,
                             const std::function<Status(int)>& launch);

// The same for several at a time, whose replays take turns: they find the device equally warm. A
// device whose tensor cores have been busy for some milliseconds runs at lower clocks.
struct GraphOf {
  int launches = 1;
  std::function<Status(int)> launch;
};
StatusOr<std::vector<double>> TimeByTurns(cudaStream_t stream, const std::vector<GraphOf>& graphs);

// Device-to-device copy of 2 GiB: bytes read plus bytes written, in TB/s.
StatusOr<double> MeasureCopyTbs(cudaStream_t stream);

Status CheckCuda(cudaError_t error, const char* what);

}  // namespace nibble::bench

#endif  // NIBBLE_TESTS_BENCH_GPU_TIMING_H_
