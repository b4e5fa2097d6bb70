// Which variant of MmaKernel runs, the same for every format. Included by the launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_MMA_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_MMA_VARIANTS_H_

#include "kernels/cuda/device/gemm_mma.cuh"
#include "kernels/cuda/launch/dependent_launch.h"
#include "kernels/cuda/launch/gemm_mma.h"

namespace nibble::cuda {

template <class Pairs, class Unit, class Shape>
cudaError_t LaunchMma(const WeightView& view, const MmaPlan& plan, const MmaLaunch& launch,
                      cudaStream_t stream) {
  constexpr int kSharedBytes = MmaStage<Unit, Shape>::kSharedBytes;
  if (plan.rows != Shape::kRows || plan.columns != Shape::kColumns) return cudaErrorInvalidValue;
  MmaArgs args;
  args.x = static_cast<const uint16_t*>(launch.x);
  args.x_stride = launch.x_stride;
  args.y = launch.y;
  args.y_type = launch.y_type;
  args.y_stride = launch.y_stride;
  args.vector_y = launch.y_type != Element::kF32 && launch.y_stride % 8 == 0 && view.n % 8 == 0 &&
                  reinterpret_cast<uintptr_t>(launch.y) % 16 == 0;
  args.unscale = Unit::kUnscale;
  args.m = static_cast<int32_t>(launch.m);
  args.column_tiles = static_cast<int32_t>(plan.column_tiles);
  args.tiles = static_cast<int32_t>(plan.tiles);
  args.whole_tiles = static_cast<int32_t>(plan.whole_tiles);
  args.blocks = plan.blocks;
  args.shares = launch.shares;
  const auto kernel = MmaKernel<Pairs, Unit, Shape>;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  error = LaunchDependent(kernel, dim3(static_cast<unsigned>(plan.blocks)), dim3(Shape::kThreads),
                          kSharedBytes, stream, view, args);
  const int64_t shared_tiles = plan.tiles - plan.whole_tiles;
  if (error != cudaSuccess || shared_tiles == 0) return error;
  return LaunchDependent(
      AddSharesKernel<Shape>, dim3(static_cast<unsigned>(shared_tiles * Shape::kVectors)),
      dim3(Shape::kMultiplying), 0, stream, view, static_cast<const WgmmaArgs&>(args));
}

template <class Pairs, class Unit>
cudaError_t LaunchMmaUnits(const WeightView& view, const MmaPlan& plan, const MmaLaunch& launch,
                           cudaStream_t stream) {
  switch (plan.columns) {
    case 16:
      return LaunchMma<Pairs, Unit, MmaShape<16, 8, 1>>(view, plan, launch, stream);
    case 32:
      return LaunchMma<Pairs, Unit, MmaShape<32, 8, 1>>(view, plan, launch, stream);
    case 64:
      return LaunchMma<Pairs, Unit, MmaShape<64, 8, 1>>(view, plan, launch, stream);
    default:
      return LaunchMma<Pairs, Unit, MmaShape<128, 4, 2>>(view, plan, launch, stream);
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_MMA_VARIANTS_H_
