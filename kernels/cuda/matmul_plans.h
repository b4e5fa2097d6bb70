// What a matmul by each kernel needs beside its arguments: how it is divided, and where the parts
// of its workspace lie.
#ifndef NIBBLE_KERNELS_CUDA_MATMUL_PLANS_H_
#define NIBBLE_KERNELS_CUDA_MATMUL_PLANS_H_

#include <algorithm>
#include <string_view>

#include "kernels/core/packed_units.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/launch/gemm_mma.h"
#include "kernels/cuda/launch/gemm_wgmma.h"
#include "kernels/cuda/workspace.h"
#include "nibble/selector.h"

namespace nibble::cuda {

// Decoded weights, and sums, that lie in memory at a time.
inline constexpr int64_t kChunkBytes = int64_t{256} << 20;
inline constexpr int64_t kChunkOutputs = 64;
// Elements of 16 bits that rows of a cuBLASLt operand are padded to: 16 bytes.
inline constexpr int64_t kBlasAlign = 8;

// The problem reduced to what the workspace depends on.
struct MatmulShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  DType input = DType::kBF16;
  QuantMode activation = QuantMode::kNone;
  bool dense = false;
  bool fp8 = false;
  bool table = false;      // NF4 or FP4
  bool one_scale = false;  // INT4 with one scale a unit
  bool reorder = false;    // x may have to be put in the order of the weight's inputs
  core::Chains chains;
};

inline MatmulShape ShapeOf(const WeightSpec& spec, int64_t m, DType input, QuantMode activation) {
  return {m,
          spec.n,
          spec.k,
          input,
          activation,
          spec.format == Format::kDense,
          spec.format == Format::kFP8,
          core::HasTable(spec.format),
          spec.format == Format::kInt4 && core::ScalesPerUnit(spec) == 1,
          spec.format == Format::kInt4 && spec.has_group_index,
          core::ChainsOf(spec)};
}

struct F32Plan {
  explicit F32Plan(const MatmulShape& shape)
      : widen(shape.input != DType::kF32 || shape.activation != QuantMode::kNone || shape.reorder) {
    if (widen) x_offset = workspace.Place(shape.m, shape.k * int64_t{sizeof(float)});
  }
  Workspace workspace;
  bool widen;
  uint64_t x_offset = 0;
};

struct GemvPlan {
  explicit GemvPlan(const MatmulShape& shape) : k_padded(RoundUp(shape.k, kUnitInputs)) {
    x_offset = workspace.Place(shape.m, k_padded * 2);
    if (shape.activation != QuantMode::kNone) {
      scales_offset = workspace.Place(shape.m, int64_t{sizeof(float)});
    }
  }
  Workspace workspace;
  int64_t k_padded;
  uint64_t x_offset = 0;
  uint64_t scales_offset = 0;
};

// x in whole units, and the sums of tiles that blocks share.
template <class Plan>
struct TilesWorkspace {
  TilesWorkspace(const MatmulShape& shape, const Plan& divided)
      : plan(divided), k_padded(RoundUp(shape.k, kUnitInputs)) {
    x_offset = workspace.Place(shape.m, k_padded * 2);
    shares_offset = workspace.Place(1, plan.ShareBytes());
  }
  Workspace workspace;
  Plan plan;
  int64_t k_padded;
  uint64_t x_offset = 0;
  uint64_t shares_offset = 0;
};

struct WgmmaWorkspace : TilesWorkspace<WgmmaPlan> {
  // kernel: cuda_wgmma or cuda_wgmma_chain. shape: of the rows of one launch, which are RowsOf it.
  WgmmaWorkspace(const MatmulShape& shape, const DeviceInfo& device, std::string_view kernel)
      : TilesWorkspace(shape, PlanOf(shape, device, kernel)) {}
  static MatmulShape RowsOf(const MatmulShape& shape, std::string_view kernel) {
    // Tiles in equal parts have sums of every part in the workspace.
    constexpr int64_t kMostInParts = 256;
    const bool parts =
        kernel == "cuda_wgmma_chain" && shape.chains.count > 1 && shape.chains.of_half == 0;
    MatmulShape rows = shape;
    if (parts) rows.m = std::min(shape.m, kMostInParts);
    return rows;
  }

 private:
  static WgmmaPlan PlanOf(const MatmulShape& shape, const DeviceInfo& device,
                          std::string_view kernel) {
    if (kernel == "cuda_wgmma_chain") {
      return WgmmaPlan::InChains(shape.m, shape.n, shape.chains.count, shape.chains.of_half,
                                 device.cores);
    }
    const WgmmaOperands operands{shape.input == DType::kF16, shape.fp8, shape.table,
                                 shape.one_scale};
    return {shape.m, shape.n, shape.k, operands, device.cores};
  }
};

struct MmaWorkspace : TilesWorkspace<MmaPlan> {
  MmaWorkspace(const MatmulShape& shape, const DeviceInfo& device)
      : TilesWorkspace(shape, MmaPlan(shape.m, shape.n, shape.k, shape.table, device.cores)) {}
};

struct GemmPlan {
  explicit GemmPlan(const MatmulShape& shape)
      : k_padded(RoundUp(shape.k, kBlasAlign)),
        split(shape.input == DType::kF16 && !shape.dense),
        decode(!shape.dense || shape.k % kBlasAlign != 0) {
    const int64_t by_weights = kChunkBytes / (k_padded * 2);
    const int64_t by_sums = kChunkBytes / (std::min(shape.m, kChunkBytes) * 4);
    chunk = std::max(kChunkOutputs, std::min(by_weights, by_sums) / kChunkOutputs * kChunkOutputs);
    chunk = std::min(chunk, RoundUp(shape.n, kBlasAlign));
    blas_offset = workspace.Place(1, BlasOptions{}.workspace_bytes);
    x_offset = workspace.Place(shape.m, k_padded * 2);
    if (split) low_offset = workspace.Place(shape.m, k_padded * 2);
    if (decode) w_offset = workspace.Place(chunk, k_padded * 2);
    sums_offset = workspace.Place(shape.m, chunk * int64_t{sizeof(float)});
  }
  Workspace workspace;
  int64_t k_padded;
  bool split;
  bool decode;
  int64_t chunk = 0;  // outputs at a time
  uint64_t blas_offset = 0;
  uint64_t x_offset = 0;
  uint64_t low_offset = 0;
  uint64_t w_offset = 0;
  uint64_t sums_offset = 0;
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_MATMUL_PLANS_H_
