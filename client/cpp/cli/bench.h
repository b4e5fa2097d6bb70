// A closed loop of callers: each sends its next matmul when the one before has been answered.
#ifndef NIBBLE_CLIENT_CLI_BENCH_H_
#define NIBBLE_CLIENT_CLI_BENCH_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/cli/session.h"
#include "nibble/v1/linear.pb.h"

namespace nibble::cli {

struct BenchOptions {
  std::string weight;
  int64_t k = 0;  // columns of x
  int64_t rows = 1;
  int concurrency = 1;   // callers, each with a connection of its own
  double seconds = 5.0;  // counts unless `requests` is above 0
  int64_t requests = 0;  // of all callers together
  v1::DType dtype = v1::DTYPE_BF16;
  v1::DType output_dtype = v1::DTYPE_UNSPECIFIED;
  v1::QuantMode activation_quant = v1::QUANT_MODE_NONE;
};

struct BenchResult {
  double seconds = 0.0;  // from the first call to the last reply
  int64_t rows_per_call = 0;
  std::vector<uint32_t> latencies_us;  // of the calls that succeeded, ascending
  double queue_us = 0.0;               // sums over them
  double compute_us = 0.0;
  double batch_rows = 0.0;
  std::map<std::string, int64_t> kernels;  // calls by kernel
  std::map<std::string, int64_t> errors;   // calls by code

  int64_t calls() const { return static_cast<int64_t>(latencies_us.size()); }
  // The smallest latency that `share` of the calls do not exceed; 0 without calls.
  uint32_t Percentile(double share) const;
  std::string Text() const;
  Json ToJson() const;
};

// Random activations, seeded. Every caller makes one call that is not counted, so that connections
// are there and the kernel chosen; an error of all of these is returned.
absl::StatusOr<BenchResult> RunBench(const BenchOptions& bench,
                                     const client::ClientOptions& connection, const Io& io);

}  // namespace nibble::cli

#endif  // NIBBLE_CLIENT_CLI_BENCH_H_
