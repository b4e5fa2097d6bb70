// Throughput of Quantize, by format and threads: GB of input per second, the best of a few runs
// over a BF16 matrix larger than the caches. Prints a Markdown table.
//
// usage: quantize_bench [ROWS COLS]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "fmt/format.h"
#include "nibble/quantize.h"
#include "tests/bench/bench_data.h"

namespace nibble::bench {
namespace {

constexpr int kRuns = 5;
constexpr int kThreads[] = {1, 2};

// Seconds of the best run; negative when quantizing fails.
double BestSeconds(const ConstMatrixView& matrix, const QuantizeTarget& target, int threads) {
  double best = -1.0;
  QuantizeOptions options = target.options;
  options.threads = threads;
  const WeightSpec spec = SpecFor(target, matrix.rows, matrix.cols, matrix.dtype);
  for (int run = 0; run < kRuns; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    const auto weight = Quantize(matrix, spec, options);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (!weight.ok()) return -1.0;
    if (best < 0 || seconds.count() < best) best = seconds.count();
  }
  return best;
}

int Main(int64_t rows, int64_t cols) {
  const HostBytes data = RandomFloats(DType::kBF16, rows * cols, -0.05f, 0.05f, 1);
  const ConstMatrixView matrix = MakeConstView(data.data(), DType::kBF16, rows, cols);
  const double gigabytes = static_cast<double>(data.size()) / 1e9;
  fmt::print(
      "BF16 [{}, {}], {:.3f} GB\n\n| format | 1 thread, GB/s | 2 threads, GB/s |\n|---|---|---|\n",
      rows, cols, gigabytes);
  for (std::string_view text :
       {"nf4+block=64", "nf4+block=64+nested", "nf4+block=4096", "fp4+block=64", "int4+group=128",
        "int4+group=128+zero-points", "int4+group=128+search", "fp8+tensor", "fp8+channel",
        "fp8+block"}) {
    const auto target = ParseQuantizeTarget(text);
    if (!target.ok()) return 1;
    std::string row = fmt::format("| {} ", text);
    for (int threads : kThreads) {
      const double seconds = BestSeconds(matrix, *target, threads);
      if (seconds <= 0) return 1;
      row += fmt::format("| {:.2f} ", gigabytes / seconds);
    }
    fmt::print("{}|\n", row);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  const int64_t rows = argc > 2 ? std::atoll(argv[1]) : 4096;
  const int64_t cols = argc > 2 ? std::atoll(argv[2]) : 14336;
  if (rows < 1 || cols < 1) return 2;
  return nibble::bench::Main(rows, cols);
}
