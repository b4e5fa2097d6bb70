// E4M3 to binary32 in vectors. Per-target include guard: Highway includes this once per
// instruction set.
#if defined(NIBBLE_KERNELS_CPU_E4M3_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_KERNELS_CPU_E4M3_INL_H_
#undef NIBBLE_KERNELS_CPU_E4M3_INL_H_
#else
#define NIBBLE_KERNELS_CPU_E4M3_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu::HWY_NAMESPACE {

// `codes` in 0..255. A NaN code gives the quiet NaN of its sign, as F8E4M3ToFloat does.
// Subnormal codes are built as 2^-6 (1 + m / 8) - 2^-6, exact: shifting them into binary32
// subnormals and scaling those up is as exact, but takes a microcode assist on x86.
template <class DF>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<DF> WidenE4M3(
    DF df, hwy::HWY_NAMESPACE::Vec<hwy::HWY_NAMESPACE::RebindToSigned<DF>> codes) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToSigned<DF> di;
  const auto magnitude = hn::And(codes, hn::Set(di, 0x7F));
  const auto sign = hn::ShiftLeft<24>(hn::Xor(codes, magnitude));
  const auto is_subnormal = hn::Lt(magnitude, hn::Set(di, 8));
  const auto bits =
      hn::Add(hn::ShiftLeft<20>(magnitude),
              hn::IfThenElse(is_subnormal, hn::Set(di, 121 << 23), hn::Set(di, 120 << 23)));
  const auto finite =
      hn::Sub(hn::BitCast(df, bits),
              hn::IfThenElseZero(hn::RebindMask(df, is_subnormal), hn::Set(df, 0x1p-6f)));
  const auto value = hn::IfThenElse(hn::Eq(magnitude, hn::Set(di, 0x7F)), hn::Set(di, 0x7FC00000),
                                    hn::BitCast(di, finite));
  return hn::BitCast(df, hn::Or(value, sign));
}

}  // namespace nibble::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NIBBLE_KERNELS_CPU_E4M3_INL_H_
