// Hopper's warpgroup matrix instruction (wgmma): thin names for PTX of compute capability 9.0a.
// sums[64 x kColumns] of the 128 threads of a warpgroup, A from registers, B from shared memory.
// Thread (warp w, g = lane / 4, t = lane % 4) holds rows 16 w + g and 16 w + g + 8: of A the pairs
// of columns 2t and 2t + 8, of the sums sums[4 j + 0..3] = (g, 8 j + 2t), (g, 8 j + 2t + 1),
// (g + 8, 8 j + 2t), (g + 8, 8 j + 2t + 1).
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_CUH_

#include "kernels/cuda/device/mma.cuh"

namespace nibble::cuda {

// Registers written by this thread are visible to the wgmmas that follow.
__device__ inline void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending committed groups are still running.
template <int kPending>
__device__ inline void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The registers of each thread of this warpgroup from now on, a multiple of 8.
template <int kCount>
__device__ inline void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void ReleaseRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Keeps the compiler from moving uses of registers that a running wgmma reads or writes.
template <int kSize>
__device__ inline void HoldRegisters(float (&values)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int kSize>
__device__ inline void HoldRegisters(uint32_t (&values)[kSize][4]) {
#pragma unroll
  for (int i = 0; i < kSize * 4; ++i) asm volatile("" : "+r"(values[i / 4][i % 4])::"memory");
}

// The lower half of the descriptor below, which may be kept and moved on by steps of 16 bytes; and
// the descriptor from it.
__device__ inline uint32_t OperandStart(uint32_t shared) {
  return ((shared & 0x3FFFFu) >> 4) | 1u << 16;
}
__device__ inline uint64_t OperandAt(uint32_t start) {
  constexpr uint64_t kEightRows = 1024;
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return start | (kEightRows >> 4) << 32 | kSwizzle128;
}

// The descriptor of a matrix in shared memory in rows of 128 bytes with the 128-byte swizzle, at a
// multiple of 1024 bytes. What the next wgmma takes is 32 bytes further.
__device__ inline uint64_t SwizzledOperand(uint32_t shared) {
  return OperandAt(OperandStart(shared));
}
inline constexpr uint64_t kSwizzledStep = 32 >> 4;

#define NIBBLE_D8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NIBBLE_D16 NIBBLE_D8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NIBBLE_D32                                                               \
  NIBBLE_D16                                                                     \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30," \
  " %31"
#define NIBBLE_D64                                                               \
  NIBBLE_D32                                                                     \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46," \
  " %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61,"  \
  " %62, %63"
#define NIBBLE_D128                                                    \
  NIBBLE_D64                                                           \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74"            \
  ", %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85"            \
  ", %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96"            \
  ", %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107"    \
  ", %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118" \
  ", %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define NIBBLE_S8(i)                                                                         \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), \
      "+f"(sums[i + 5]), "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define NIBBLE_S16(i) NIBBLE_S8(i), NIBBLE_S8(i + 8)
#define NIBBLE_S32(i) NIBBLE_S16(i), NIBBLE_S16(i + 16)
#define NIBBLE_S64(i) NIBBLE_S32(i), NIBBLE_S32(i + 32)
#define NIBBLE_S128(i) NIBBLE_S64(i), NIBBLE_S64(i + 64)

// sums = a * b + (add ? sums : 0).
#define NIBBLE_WGMMA(COLUMNS, PAIRS, TYPE, D, S, A, B, ADD)                                  \
  __device__ inline void Wgmma(PAIRS, float(&sums)[COLUMNS / 2], const uint32_t(&a)[4],      \
                               uint64_t b, int add) {                                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD                                     \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE "." TYPE \
                 " {" D "}, {" A "}, " B ", p, 1, 1, 0;\n}"                                  \
                 : S(0)                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)              \
                 : "memory");                                                                \
  }
#define NIBBLE_WGMMA_TYPES(COLUMNS, D, S, A, B, ADD)        \
  NIBBLE_WGMMA(COLUMNS, BF16Pairs, "bf16", D, S, A, B, ADD) \
  NIBBLE_WGMMA(COLUMNS, F16Pairs, "f16", D, S, A, B, ADD)

NIBBLE_WGMMA_TYPES(16, NIBBLE_D8, NIBBLE_S8, "%8, %9, %10, %11", "%12", "%13")
NIBBLE_WGMMA_TYPES(32, NIBBLE_D16, NIBBLE_S16, "%16, %17, %18, %19", "%20", "%21")
NIBBLE_WGMMA_TYPES(64, NIBBLE_D32, NIBBLE_S32, "%32, %33, %34, %35", "%36", "%37")
NIBBLE_WGMMA_TYPES(128, NIBBLE_D64, NIBBLE_S64, "%64, %65, %66, %67", "%68", "%69")
NIBBLE_WGMMA_TYPES(256, NIBBLE_D128, NIBBLE_S128, "%128, %129, %130, %131", "%132", "%133")

#undef NIBBLE_WGMMA_TYPES
#undef NIBBLE_WGMMA
#undef NIBBLE_S128
#undef NIBBLE_S64
#undef NIBBLE_S32
#undef NIBBLE_S16
#undef NIBBLE_S8
#undef NIBBLE_D128
#undef NIBBLE_D64
#undef NIBBLE_D32
#undef NIBBLE_D16
#undef NIBBLE_D8

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_CUH_
