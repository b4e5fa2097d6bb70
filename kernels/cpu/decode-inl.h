// Decoders of the packed formats, 32 weights at a time. Per-target include guard: Highway includes
// this once per instruction set.
#if defined(NIBBLE_KERNELS_CPU_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_KERNELS_CPU_DECODE_INL_H_
#undef NIBBLE_KERNELS_CPU_DECODE_INL_H_
#else
#define NIBBLE_KERNELS_CPU_DECODE_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/e4m3-inl.h"
#include "kernels/cpu/packed_weight.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
inline constexpr int64_t kVectorLanes = static_cast<int64_t>(hn::MaxLanes(DF()));

// NF4, FP4 and INT4: f32(value(code) * scale) is computed once per run for all 16 codes; a weight
// is then one look-up.
class TableDecoder {
 public:
  static constexpr int64_t kGroupBytes = 16;

  explicit TableDecoder(Format format)
      : values_(format == Format::kNF4   ? kNF4Table
                : format == Format::kFP4 ? kFP4Table
                                         : nullptr) {}

  HWY_INLINE void SetRun(const RunCursor& run) {
    const DF df;
    const VF scale = hn::Set(df, run.scale());
    for (int64_t i = 0; i < 16; i += kVectorLanes) {
      const VF value = values_ != nullptr ? hn::LoadU(df, values_ + i)
                                          : hn::Sub(hn::Iota(df, static_cast<float>(i)),
                                                    hn::Set(df, run.zero_point()));
      hn::Store(hn::Mul(value, scale), df, scaled_ + i);
    }
  }

  HWY_INLINE void Decode(const uint8_t* codes, float* out) const {
    const DF df;
    const DI di;
    const hn::Rebind<uint8_t, DF> d_codes;
    for (int64_t i = 0; i < 16; i += kVectorLanes) {
      const VI pairs = hn::PromoteTo(di, hn::LoadU(d_codes, codes + i));
      hn::StoreU(LookUp(hn::And(pairs, hn::Set(di, 15))), df, out + i);
      hn::StoreU(LookUp(hn::ShiftRight<4>(pairs)), df, out + 16 + i);
    }
  }

 private:
  HWY_INLINE VF LookUp(VI codes) const {
    const DF df;
    const DI di;
    if constexpr (kVectorLanes == 16) {
      return hn::TableLookupLanes(hn::Load(df, scaled_), hn::IndicesFromVec(df, codes));
    } else if constexpr (kVectorLanes == 8) {
      const auto lanes = hn::IndicesFromVec(df, hn::And(codes, hn::Set(di, 7)));
      const auto is_upper = hn::RebindMask(df, hn::Gt(codes, hn::Set(di, 7)));
      return hn::IfThenElse(is_upper, hn::TableLookupLanes(hn::Load(df, scaled_ + 8), lanes),
                            hn::TableLookupLanes(hn::Load(df, scaled_), lanes));
    } else {
      return hn::GatherIndex(df, scaled_, codes);
    }
  }

  const float* values_;  // null: code minus zero point
  alignas(64) float scaled_[16];
};

class Fp8Decoder {
 public:
  static constexpr int64_t kGroupBytes = 32;

  explicit Fp8Decoder(Format) {}

  HWY_INLINE void SetRun(const RunCursor& run) { scale_ = run.scale(); }

  HWY_INLINE void Decode(const uint8_t* codes, float* out) const {
    const DF df;
    const hn::Rebind<uint8_t, DF> d_codes;
    for (int64_t i = 0; i < kDecodeGroup; i += kVectorLanes) {
      const VF value = WidenE4M3(df, hn::PromoteTo(DI(), hn::LoadU(d_codes, codes + i)));
      hn::StoreU(hn::Mul(value, hn::Set(df, scale_)), df, out + i);
    }
  }

 private:
  float scale_ = 0.0f;
};

// Positions [k_begin, k_begin + count) of row n; count is a multiple of 32.
template <class Decoder>
HWY_INLINE void DecodeGroups(const PackedWeight& weight, int64_t n, int64_t k_begin, int64_t count,
                             float* out) {
  Decoder decoder(weight.spec.format);
  RunCursor run(weight, n, k_begin);
  decoder.SetRun(run);
  const uint8_t* codes =
      weight.codes + n * weight.row_bytes + k_begin / kDecodeGroup * Decoder::kGroupBytes;
  const int64_t k_end = k_begin + count;
  for (int64_t k = k_begin; k < k_end; k += kDecodeGroup) {
    if (k >= run.end()) {
      run.Next();
      decoder.SetRun(run);
    }
    decoder.Decode(codes, out);
    // A group of inputs that lies in several runs: each run overwrites the rest of the group.
    while (run.end() < k + kDecodeGroup) {
      const int64_t first = run.end() - k;
      run.Next();
      decoder.SetRun(run);
      alignas(64) float decoded[kDecodeGroup];
      decoder.Decode(codes, decoded);
      std::copy(decoded + first, decoded + kDecodeGroup, out + first);
    }
    codes += Decoder::kGroupBytes;
    out += kDecodeGroup;
  }
}

}  // namespace nibble::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NIBBLE_KERNELS_CPU_DECODE_INL_H_
