#include "kernels/cuda/launch/wgmma_variants.h"

namespace nibble::cuda {

// Half a unit at a time: there are no registers for all of it.
template <class Pairs>
struct WgmmaFp8Unit {
  static constexpr bool kBoxed = true;
  static constexpr int kScalesPerUnit = 0;
  static constexpr float kUnscale = Fp8Words<Pairs>::kUnscale;
  static constexpr int kTableBytes = 0;
  static constexpr int kCodeBytes = 2048;
  static constexpr int kScaleBytes = 0;
  static constexpr int kRowScaleBytes = 0;
  static constexpr int kZeroBytes = 0;
  uint4 words[2];
  uint32_t codes_at;

  __device__ static int CodesOffset(int lane) { return RingFp8Unit<Pairs>::CodesOffset(lane); }
  __device__ static void FillTable(const WeightView&, uint32_t*, int) {}
  __device__ void Load(uint32_t codes, uint32_t, uint32_t) {
    codes_at = codes;
#pragma unroll
    for (int i = 0; i < 2; ++i) words[i] = LoadSharedMatrices(codes ^ (i * 32));
  }
  __device__ void NextHalf() { Load(codes_at ^ 64, 0, 0); }
  __device__ void Decode(const WeightView&, const uint32_t*, int i, uint32_t (&low)[4],
                         uint32_t (&high)[4]) const {
    DecodeFp8Words<Pairs>(words[i].x, words[i].z, low);
    DecodeFp8Words<Pairs>(words[i].y, words[i].w, high);
  }
};

cudaError_t LaunchWgmmaFp8(const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch,
                           cudaStream_t stream) {
  return launch.f16
             ? LaunchWgmmaUnits<F16Pairs, WgmmaFp8Unit<F16Pairs>>(view, plan, launch, stream)
             : LaunchWgmmaUnits<BF16Pairs, WgmmaFp8Unit<BF16Pairs>>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
