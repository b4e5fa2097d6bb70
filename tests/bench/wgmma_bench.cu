// How much other work goes beside wgmmas whose first operand is in registers, on compute capability
// 9.0: cycles of a multiprocessor for each wgmma m64 x columns x k16, where warpgroups execute so
// many other instructions for each of theirs. The decoders of the wgmma kernels are such work
// (kernels/README.md). Build it with `cmake --build --preset cuda-release --target wgmma_bench`.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <cuda_runtime.h>

#include "kernels/cuda/device/wgmma.cuh"

namespace nibble::cuda {
namespace {

constexpr int kBlocks = 64;
constexpr int kSteps = 2000;
constexpr int kSharedBytes = 96 * 1024;

// Half logic, half BF16 arithmetic, as a decoder's, of so many registers.
template <int kInstructions, int kRegisters>
__device__ void OtherWork(uint32_t (&values)[8]) {
#pragma unroll
  for (int i = 0; i < kInstructions; ++i) {
    if (i % 2 == 0) {
      asm volatile("lop3.b32 %0, %0, %1, %2, 0xEA;"
                   : "+r"(values[i % 8])
                   : "r"(values[(i + 3) % 8]), "r"(0x43004300u));
    } else if (kRegisters == 3) {
      asm volatile("fma.rn.bf16x2 %0, %0, %1, %2;"
                   : "+r"(values[i % 8])
                   : "r"(values[(i + 3) % 8]), "r"(values[(i + 6) % 8]));
    } else {
      asm volatile("fma.rn.bf16x2 %0, %0, %1, %2;"
                   : "+r"(values[i % 8])
                   : "r"(values[(i + 3) % 8]), "r"(0x3F803F80u));
    }
  }
}

template <int kColumns, int kGroups, int kInstructions, int kRegisters>
__global__ void __launch_bounds__(kGroups * 128, 1)
    BesideKernel(long long* cycles, uint32_t* results) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint32_t operand[];
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(operand));
  for (int i = threadIdx.x; i < kSharedBytes / 4; i += kGroups * 128) operand[i] = 0;
  __syncthreads();
  const uint64_t x = SwizzledOperand(__shfl_sync(0xFFFFFFFFu, (shared + 1023) / 1024 * 1024, 0));
  float sums[kColumns / 2] = {};
  uint32_t a[2][2][4] = {};
  uint32_t values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = threadIdx.x + i;
  const long long begin = clock64();
#pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      OtherWork<kInstructions * 2, kRegisters>(values);
      HoldRegisters(sums);
      HoldRegisters(a[part]);
      WgmmaFence();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Wgmma(BF16Pairs{}, sums, a[part][i], x + (part * 2 + i) * kSwizzledStep, 1);
      }
      WgmmaCommit();
      WgmmaWait<1>();
      HoldRegisters(a[1 - part]);
    }
  }
  WgmmaWait<0>();
  HoldRegisters(sums);
  if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - begin;
  uint32_t result = __float_as_uint(sums[0]);
#pragma unroll
  for (int i = 0; i < 8; ++i) result ^= values[i];
  results[blockIdx.x * blockDim.x + threadIdx.x] = result;  // keeps the work
#endif
}

template <int kColumns, int kGroups, int kInstructions, int kRegisters>
bool Measure() {
  long long* cycles = nullptr;
  uint32_t* results = nullptr;
  std::vector<long long> of_blocks(kBlocks);
  const auto kernel = BesideKernel<kColumns, kGroups, kInstructions, kRegisters>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  cudaMalloc(&cycles, kBlocks * sizeof(*cycles));
  cudaMalloc(&results, kBlocks * kGroups * 128 * sizeof(*results));
  for (int run = 0; run < 2; ++run) {
    kernel<<<kBlocks, kGroups * 128, kSharedBytes>>>(cycles, results);
  }
  const cudaError_t error =
      cudaMemcpy(of_blocks.data(), cycles, kBlocks * sizeof(*cycles), cudaMemcpyDeviceToHost);
  cudaFree(cycles);
  cudaFree(results);
  if (error != cudaSuccess) {
    std::fprintf(stderr, "wgmma_bench: %s\n", cudaGetErrorString(error));
    return false;
  }
  const double all = static_cast<double>(*std::max_element(of_blocks.begin(), of_blocks.end()));
  std::printf(" %8.1f", all / (kSteps * 4.0 * kGroups));
  return true;
}

template <int kColumns, int kGroups, int kRegisters = 2>
bool MeasureRow() {
  std::printf("%7d %10d %9d", kColumns, kGroups, kRegisters);
  const bool ok =
      Measure<kColumns, kGroups, 0, kRegisters>() && Measure<kColumns, kGroups, 12, kRegisters>() &&
      Measure<kColumns, kGroups, 18, kRegisters>() &&
      Measure<kColumns, kGroups, 24, kRegisters>() && Measure<kColumns, kGroups, 36, kRegisters>();
  std::printf("\n");
  return ok;
}

}  // namespace
}  // namespace nibble::cuda

int main() {
  using nibble::cuda::MeasureRow;
  std::printf("cycles of a wgmma beside so many other instructions of its warpgroup\n");
  std::printf("columns warpgroups registers %8d %8d %8d %8d %8d\n", 0, 12, 18, 24, 36);
  const bool ok = MeasureRow<16, 4>() && MeasureRow<32, 4>() && MeasureRow<64, 2>() &&
                  MeasureRow<64, 4>() && MeasureRow<128, 2>() && MeasureRow<128, 4>() &&
                  MeasureRow<256, 2>() && MeasureRow<64, 4, 3>() && MeasureRow<128, 4, 3>() &&
                  MeasureRow<256, 2, 3>();
  return ok ? 0 : 1;
}
