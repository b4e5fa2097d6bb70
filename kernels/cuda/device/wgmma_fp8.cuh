// Hopper's warpgroup products of E4M3 matrices: thin names for PTX of compute capability 9.0a.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_FP8_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_FP8_CUH_

#include "kernels/cuda/device/wgmma.cuh"

namespace nibble::cuda {

// d [64 x kN] = a [64 x 32] * b [kN x 32]^T, or += where `add` is not 0. Lane (g, t) of warp i
// holds rows 16 i + g and 8 more of columns 8 j + 2 t and the next: d[4 j .. 4 j + 3].
template <int kN>
struct Fp8Wgmma;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define NIBBLE_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])

template <>
struct Fp8Wgmma<8> {
  __device__ static void Run(float (&d)[4], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3}, "
        "%4, %5, p, 1, 1;\n}"
        : NIBBLE_D4(0)
        : "l"(a), "l"(b), "r"(add));
  }
};

template <>
struct Fp8Wgmma<16> {
  __device__ static void Run(float (&d)[8], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, "
        "%8, %9, p, 1, 1;\n}"
        : NIBBLE_D4(0), NIBBLE_D4(4)
        : "l"(a), "l"(b), "r"(add));
  }
};

template <>
struct Fp8Wgmma<32> {
  __device__ static void Run(float (&d)[16], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "%16, %17, p, 1, 1;\n}"
        : NIBBLE_D4(0), NIBBLE_D4(4), NIBBLE_D4(8), NIBBLE_D4(12)
        : "l"(a), "l"(b), "r"(add));
  }
};

template <>
struct Fp8Wgmma<64> {
  __device__ static void Run(float (&d)[32], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1;\n}"
        : NIBBLE_D4(0), NIBBLE_D4(4), NIBBLE_D4(8), NIBBLE_D4(12), NIBBLE_D4(16), NIBBLE_D4(20),
          NIBBLE_D4(24), NIBBLE_D4(28)
        : "l"(a), "l"(b), "r"(add));
  }
};

template <>
struct Fp8Wgmma<128> {
  __device__ static void Run(float (&d)[64], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1;\n}"
        : NIBBLE_D4(0), NIBBLE_D4(4), NIBBLE_D4(8), NIBBLE_D4(12), NIBBLE_D4(16), NIBBLE_D4(20),
          NIBBLE_D4(24), NIBBLE_D4(28), NIBBLE_D4(32), NIBBLE_D4(36), NIBBLE_D4(40), NIBBLE_D4(44),
          NIBBLE_D4(48), NIBBLE_D4(52), NIBBLE_D4(56), NIBBLE_D4(60)
        : "l"(a), "l"(b), "r"(add));
  }
};

#undef NIBBLE_D4
#endif

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_FP8_CUH_
