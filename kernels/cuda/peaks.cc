#include "kernels/cuda/peaks.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/cuda/launch/read_bandwidth.h"
#include "kernels/cuda/stream.h"

namespace nibble::cuda {
namespace {

// The shortest of up to `passes` runs of `enqueue` in seconds, until they took `most_us` together;
// 0 where one cannot run. One run before them is not timed: it loads the kernel (cuBLASLt's in 80
// ms). The first ones find clocks that still rise.
double ShortestSeconds(Context& context, Stream& stream, int passes, double most_us,
                       const std::function<Status()>& enqueue) {
  double best_us = 0.0;
  double total_us = 0.0;
  for (int pass = -1; pass < passes && total_us < most_us; ++pass) {
    if (!stream.Mark(0).ok() || !enqueue().ok() || !stream.Mark(1).ok() ||
        !stream.Synchronize().ok()) {
      return 0.0;
    }
    const auto elapsed_us = stream.MicrosecondsBetween(0, 1);
    if (!elapsed_us.ok() || *elapsed_us <= 0.0 || !context.health().ok()) return 0.0;
    if (pass < 0) continue;
    best_us = best_us == 0.0 ? *elapsed_us : std::min(best_us, *elapsed_us);
    total_us += *elapsed_us;
  }
  return best_us * 1e-6;
}

// Read bandwidth in bytes per second, 0 where it cannot be measured: passes over more memory than
// the caches hold.
double MeasureReadBandwidth(const std::shared_ptr<Context>& context) {
  constexpr int kPasses = 20;
  constexpr double kMostUs = 100e3;
  const MemoryUse use = context->budget()->use();
  const uint64_t bytes = std::min(uint64_t{1} << 30, (use.total_bytes - use.used_bytes) / 4) /
                         kReadUnitBytes * kReadUnitBytes;
  auto memory = DeviceMemory::Create(context, bytes + core::kAlignment, nullptr, "a measurement");
  auto stream = CudaStream::Create(context);
  if (!memory.ok() || !stream.ok() || bytes == 0) return 0.0;
  const cudaStream_t handle = static_cast<CudaStream&>(**stream).handle();
  if (!context->Check(cudaMemsetAsync(memory->data(), 0, memory->size(), handle), "a memset")
           .ok()) {
    return 0.0;
  }
  const double seconds = ShortestSeconds(*context, **stream, kPasses, kMostUs, [&] {
    return context->Check(
        LaunchRead(memory->data(), static_cast<int64_t>(bytes), memory->data() + bytes, handle),
        "a measurement");
  });
  return seconds > 0.0 ? static_cast<double>(bytes) / seconds : 0.0;
}

// BF16 numbers of 0.5 to 1 in magnitude, their other bits at random: a chip multiplies zeros
// with less power and so faster.
std::vector<uint16_t> SomeNumbers(size_t count) {
  std::vector<uint16_t> numbers(count);
  uint32_t state = 1;
  for (uint16_t& number : numbers) {
    state = state * 1664525u + 1013904223u;
    number = static_cast<uint16_t>(0x3F00u | (state >> 9 & 0x807Fu));
  }
  return numbers;
}

// Operations a second of a matmul of 4096 x 4096 x 4096, 0 where it cannot be measured.
double MeasureTensorFlops(const std::shared_ptr<Context>& context, Blas& blas) {
  constexpr int64_t kSize = 4096;
  constexpr uint64_t kMatrixBytes = uint64_t{kSize} * kSize * 2;
  constexpr int kPasses = 12;
  constexpr double kMostUs = 20e3;
  const BlasOptions options;
  auto memory = DeviceMemory::Create(context, 3 * kMatrixBytes + options.workspace_bytes, nullptr,
                                     "a measurement");
  auto stream = CudaStream::Create(context);
  if (!memory.ok() || !stream.ok()) return 0.0;
  const cudaStream_t handle = static_cast<CudaStream&>(**stream).handle();
  char* x = memory->data();
  char* w = x + kMatrixBytes;
  char* y = w + kMatrixBytes;
  const std::vector<uint16_t> numbers = SomeNumbers(size_t{1} << 18);
  const uint64_t bytes = numbers.size() * sizeof(uint16_t);
  for (uint64_t at = 0; at < 2 * kMatrixBytes; at += bytes) {
    const cudaError_t copied =
        at == 0 ? cudaMemcpyAsync(x, numbers.data(), bytes, cudaMemcpyHostToDevice, handle)
                : cudaMemcpyAsync(x + at, x, bytes, cudaMemcpyDeviceToDevice, handle);
    if (!context->Check(copied, "a measurement").ok()) return 0.0;
  }
  BlasProblem problem;
  problem.input = DType::kBF16;
  problem.output = DType::kBF16;
  problem.m = problem.n = problem.k = kSize;
  problem.x_stride = problem.w_stride = problem.y_stride = kSize;
  const double seconds = ShortestSeconds(*context, **stream, kPasses, kMostUs, [&] {
    return blas.Run(problem, x, w, y, y + kMatrixBytes, handle);
  });
  constexpr double kSizeAsDouble = kSize;
  return seconds > 0.0 ? 2.0 * kSizeAsDouble * kSizeAsDouble * kSizeAsDouble / seconds : 0.0;
}

// 0 where the device does not tell.
double Attribute(const Context& context, cudaDeviceAttr attribute) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, attribute, context.ordinal()) != cudaSuccess) {
    cudaGetLastError();
    return 0.0;
  }
  return value;
}

// Shares of what the clocks promise that are reached, as on an H200.
constexpr double kReachedBandwidth = 0.93;
constexpr double kReachedFlops = 0.75;

double BandwidthByClock(const Context& context) {
  constexpr double kTransfersPerClock = 2.0;
  return kReachedBandwidth * kTransfersPerClock * Attribute(context, cudaDevAttrMemoryClockRate) *
         1e3 * Attribute(context, cudaDevAttrGlobalMemoryBusWidth) / 8.0;
}

// Dense 16-bit operations with binary32 sums a clock of a multiprocessor.
double FlopsPerClock(const Context& context) {
  const double major = Attribute(context, cudaDevAttrComputeCapabilityMajor);
  const double minor = Attribute(context, cudaDevAttrComputeCapabilityMinor);
  if (major == 8) return minor == 0 ? 2048 : 1024;
  if (major == 9) return 4096;
  if (major == 10) return 8192;
  return 1024;
}

double FlopsByClock(const Context& context) {
  return kReachedFlops * FlopsPerClock(context) *
         Attribute(context, cudaDevAttrMultiProcessorCount) *
         Attribute(context, cudaDevAttrClockRate) * 1e3;
}

}  // namespace

Peaks MeasurePeaks(const std::shared_ptr<Context>& context, Blas& blas,
                   double known_tensor_flops_per_second) {
  Peaks peaks{MeasureReadBandwidth(context), known_tensor_flops_per_second};
  if (peaks.tensor_flops_per_second == 0.0) {
    peaks.tensor_flops_per_second = MeasureTensorFlops(context, blas);
  }
  if (peaks.bandwidth_bytes_per_second == 0.0) {
    peaks.bandwidth_bytes_per_second = BandwidthByClock(*context);
  }
  // Far less than the clocks promise is a device that others keep busy. A third is not: an H20 has
  // so much of the tensor peak of its compute capability.
  constexpr double kLeastShare = 0.2;
  const double by_clock = FlopsByClock(*context);
  if (peaks.tensor_flops_per_second < kLeastShare * by_clock) {
    peaks.tensor_flops_per_second = by_clock;
  }
  return peaks;
}

}  // namespace nibble::cuda
