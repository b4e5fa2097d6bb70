#include "kernels/cpu/matmul.h"

#include "kernels/cpu/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu::HWY_NAMESPACE {

void DecodeRowImpl(const PackedWeight& weight, int64_t n, int64_t k_begin, int64_t count,
                   float* out) {
  const int64_t padded = PadInputs(count);
  switch (weight.spec.format) {
    case Format::kDense: {
      const auto bytes = static_cast<int64_t>(DTypeBytes(weight.spec.dtype));
      const int64_t present = std::min(count, weight.spec.k - k_begin);
      LoadFloats(weight.codes + n * weight.row_bytes + k_begin * bytes, weight.spec.dtype, present,
                 out);
      break;
    }
    case Format::kNF4:
    case Format::kFP4:
    case Format::kInt4:
      DecodeGroups<TableDecoder>(weight, n, k_begin, padded, out);
      break;
    case Format::kFP8:
      DecodeGroups<Fp8Decoder>(weight, n, k_begin, padded, out);
      break;
  }
  for (int64_t i = weight.spec.k - k_begin; i < padded; ++i) out[i] = 0.0f;
}

namespace {

// Rows and outputs of a tile: their accumulators, the weights of one step and one activation fill
// the registers.
#if HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr int64_t kTileRows = 4;
constexpr int64_t kTileOutputs = 6;
#else
constexpr int64_t kTileRows = 3;
constexpr int64_t kTileOutputs = 4;
#endif
static_assert(kPanelOutputs % kTileOutputs == 0);
static_assert(kLanes % kVectorLanes == 0);

constexpr int64_t kRowAccumulators = kPanelOutputs * kLanes;

// acc[m][n][lane] += x[m][k] * w[n][k] over `inputs` positions. x [kRows, inputs], rows x_stride
// apart; w [kTileOutputs, inputs], rows kStepInputs apart; acc rows kRowAccumulators apart.
template <int64_t kRows>
HWY_NOINLINE void Tile(const float* HWY_RESTRICT x, int64_t x_stride, const float* HWY_RESTRICT w,
                       int64_t inputs, float* HWY_RESTRICT acc) {
  const DF df;
  for (int64_t lane = 0; lane < kLanes; lane += kVectorLanes) {
    VF sums[kRows][kTileOutputs];
#pragma GCC unroll 8
    for (int64_t m = 0; m < kRows; ++m) {
#pragma GCC unroll 8
      for (int64_t n = 0; n < kTileOutputs; ++n) {
        sums[m][n] = hn::Load(df, acc + m * kRowAccumulators + n * kLanes + lane);
      }
    }
    for (int64_t k = lane; k < inputs; k += kLanes) {
      VF weights[kTileOutputs];
#pragma GCC unroll 8
      for (int64_t n = 0; n < kTileOutputs; ++n) {
        weights[n] = hn::Load(df, w + n * kStepInputs + k);
      }
#pragma GCC unroll 8
      for (int64_t m = 0; m < kRows; ++m) {
        const VF activation = hn::LoadU(df, x + m * x_stride + k);
#pragma GCC unroll 8
        for (int64_t n = 0; n < kTileOutputs; ++n) {
          sums[m][n] = hn::MulAdd(activation, weights[n], sums[m][n]);
        }
      }
    }
#pragma GCC unroll 8
    for (int64_t m = 0; m < kRows; ++m) {
#pragma GCC unroll 8
      for (int64_t n = 0; n < kTileOutputs; ++n) {
        hn::Store(sums[m][n], df, acc + m * kRowAccumulators + n * kLanes + lane);
      }
    }
  }
}

void RunTile(int64_t rows, const float* x, int64_t x_stride, const float* w, int64_t inputs,
             float* acc) {
  static_assert(kTileRows <= 4);
  switch (rows) {
    case 1:
      return Tile<1>(x, x_stride, w, inputs, acc);
    case 2:
      return Tile<2>(x, x_stride, w, inputs, acc);
    case 3:
      return Tile<3>(x, x_stride, w, inputs, acc);
    default:
      return Tile<kTileRows>(x, x_stride, w, inputs, acc);
  }
}

float SumLanes(const float* lanes) {
  float sums[8];
  for (int i = 0; i < 8; ++i) sums[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) sums[i] += sums[i + 4];
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// `outputs` outputs from n_begin on, all rows of the panel.
void RunOutputs(const MatmulPanel& panel, int64_t n_begin, int64_t outputs) {
  const PackedWeight& weight = *panel.weight;
  float* decoded = panel.scratch;
  float* acc = panel.scratch + kPanelOutputs * kStepInputs;
  const int64_t tiled_outputs = CeilDiv(outputs, kTileOutputs) * kTileOutputs;
  std::fill(acc, acc + panel.rows * kRowAccumulators, 0.0f);
  // Outputs that only fill the last tile.
  std::fill(decoded + outputs * kStepInputs, decoded + tiled_outputs * kStepInputs, 0.0f);

  for (int64_t k = 0; k < weight.k_padded; k += kStepInputs) {
    const int64_t inputs = std::min(kStepInputs, weight.k_padded - k);
    for (int64_t n = 0; n < outputs; ++n) {
      DecodeRowImpl(weight, n_begin + n, k, inputs, decoded + n * kStepInputs);
    }
    for (int64_t m = 0; m < panel.rows; m += kTileRows) {
      const int64_t rows = std::min(kTileRows, panel.rows - m);
      for (int64_t n = 0; n < tiled_outputs; n += kTileOutputs) {
        RunTile(rows, panel.x + m * weight.k_padded + k, weight.k_padded, decoded + n * kStepInputs,
                inputs, acc + m * kRowAccumulators + n * kLanes);
      }
    }
  }

  auto* y = static_cast<std::byte*>(panel.y.data) +
            n_begin * static_cast<int64_t>(DTypeBytes(panel.y.dtype));
  for (int64_t m = 0; m < panel.rows; ++m) {
    float results[kPanelOutputs];
    for (int64_t n = 0; n < outputs; ++n) {
      results[n] = SumLanes(acc + m * kRowAccumulators + n * kLanes);
      if (weight.bias != nullptr) results[n] += weight.bias[n_begin + n];
    }
    StoreFloats(results, outputs, panel.y.dtype, y + m * panel.y.row_stride_bytes());
  }
}

}  // namespace

void GemvPanelImpl(const MatmulPanel& panel) {
  for (int64_t n = 0; n < panel.outputs; n += kTileOutputs) {
    RunOutputs(panel, panel.n_begin + n, std::min(kTileOutputs, panel.outputs - n));
  }
}

void GemmPanelImpl(const MatmulPanel& panel) { RunOutputs(panel, panel.n_begin, panel.outputs); }

}  // namespace nibble::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::cpu {

HWY_EXPORT(DecodeRowImpl);
HWY_EXPORT(GemvPanelImpl);
HWY_EXPORT(GemmPanelImpl);

void DecodeRow(const PackedWeight& weight, int64_t n, int64_t k_begin, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeRowImpl)(weight, n, k_begin, count, out);
}
void GemvPanel(const MatmulPanel& panel) { HWY_DYNAMIC_DISPATCH(GemvPanelImpl)(panel); }
void GemmPanel(const MatmulPanel& panel) { HWY_DYNAMIC_DISPATCH(GemmPanelImpl)(panel); }

}  // namespace nibble::cpu
#endif  // HWY_ONCE
