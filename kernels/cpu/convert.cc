#include "kernels/cpu/convert.h"

#include "nibble/numeric.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/convert.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/e4m3-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// A capped tag, like the loops below, so that a vector is never longer than the buffers of callers.
using DF = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;

VI SelectBits(hn::Mask<DI> mask, VI yes, VI no) { return hn::IfThenElse(mask, yes, no); }

VF WidenF16(VI half) {
  const DF df;
  const DI di;
  const VI sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(di, 0x8000)));
  const VI magnitude = hn::And(half, hn::Set(di, 0x7FFF));
  const VI shifted = hn::ShiftLeft<13>(magnitude);
  const VI normal = hn::Add(shifted, hn::Set(di, 112 << 23));
  const VI special = hn::Add(shifted, hn::Set(di, 224 << 23));  // infinity and NaN
  const VI subnormal =
      hn::BitCast(di, hn::Mul(hn::ConvertTo(df, magnitude), hn::Set(df, 0x1p-24f)));
  const VI finite = SelectBits(hn::Lt(magnitude, hn::Set(di, 0x400)), subnormal, normal);
  const VI bits = SelectBits(hn::Gt(magnitude, hn::Set(di, 0x7BFF)), special, finite);
  return hn::BitCast(df, hn::Or(bits, sign));
}

VI NarrowBF16(VI bits) {
  const DI di;
  using DU = hn::RebindToUnsigned<DI>;
  const DU du;
  const auto u = hn::BitCast(du, bits);
  const auto upper = hn::ShiftRight<16>(u);
  const auto odd = hn::And(upper, hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(u, hn::Set(du, 0x7FFF)), odd));
  const auto quiet = hn::Or(upper, hn::Set(du, 0x0040));
  const VI magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
  return SelectBits(hn::Gt(magnitude, hn::Set(di, 0x7F800000)), hn::BitCast(di, quiet),
                    hn::BitCast(di, rounded));
}

VI NarrowF16(VI bits) {
  const DF df;
  const DI di;
  const VI sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(di, 0x8000));
  const VI magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
  const VI shifted = hn::ShiftRight<13>(magnitude);
  const VI nan = hn::Or(hn::And(shifted, hn::Set(di, 0x1FF)), hn::Set(di, 0x7E00));
  const VI tiny = hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 0.5f))),
                          hn::Set(di, 0x3F000000));
  const VI odd = hn::And(shifted, hn::Set(di, 1));
  const VI normal = hn::ShiftRight<13>(
      hn::Sub(hn::Add(hn::Add(magnitude, hn::Set(di, 0xFFF)), odd), hn::Set(di, 0x38000000)));
  VI result = SelectBits(hn::Lt(magnitude, hn::Set(di, 0x38800000)), tiny, normal);
  result = SelectBits(hn::Gt(magnitude, hn::Set(di, 0x477FEFFF)), hn::Set(di, 0x7C00), result);
  result = SelectBits(hn::Gt(magnitude, hn::Set(di, 0x7F800000)), nan, result);
  return hn::Or(result, sign);
}

VI NarrowE4M3(VI bits) {
  const DF df;
  const DI di;
  const VI sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(di, 0x80));
  const VI magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
  const VI tiny =
      hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 16384.0f))),
              hn::Set(di, 0x46800000));
  const VI odd = hn::And(hn::ShiftRight<20>(magnitude), hn::Set(di, 1));
  const VI normal = hn::ShiftRight<20>(
      hn::Sub(hn::Add(hn::Add(magnitude, hn::Set(di, 0x7FFFF)), odd), hn::Set(di, 0x3C000000)));
  VI result = SelectBits(hn::Lt(magnitude, hn::Set(di, 0x3C800000)), tiny, normal);
  result = SelectBits(hn::Gt(magnitude, hn::Set(di, 0x43DFFFFF)), hn::Set(di, 0x7E), result);
  result = SelectBits(hn::Gt(magnitude, hn::Set(di, 0x7F800000)), hn::Set(di, 0x7F), result);
  return hn::Or(result, sign);
}

VI NarrowI8(VI bits) {
  const DF df;
  const VF value = hn::BitCast(df, bits);
  const VF number = hn::IfThenElseZero(hn::Eq(value, value), value);
  return hn::NearestInt(hn::Min(hn::Max(number, hn::Set(df, -128.0f)), hn::Set(df, 127.0f)));
}

// Runs `convert` on whole vectors of the array; returns how many elements that covers.
template <typename T, class Convert>
int64_t WidenAll(const void* src, int64_t count, float* dst, Convert convert) {
  const DF df;
  const hn::Rebind<T, DF> d_src;
  const auto* from = static_cast<const T*>(src);
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(convert(hn::PromoteTo(DI(), hn::LoadU(d_src, from + i))), df, dst + i);
  }
  return i;
}

template <typename T, class Convert>
int64_t NarrowAll(const float* src, int64_t count, void* dst, Convert convert) {
  const DF df;
  const DI di;
  const hn::Rebind<T, DF> d_dst;
  auto* to = static_cast<T*>(dst);
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const VI bits = hn::BitCast(di, hn::LoadU(df, src + i));
    hn::StoreU(hn::DemoteTo(d_dst, convert(bits)), d_dst, to + i);
  }
  return i;
}

}  // namespace

int64_t LoadVectors(const void* src, DType dtype, int64_t count, float* dst) {
  switch (dtype) {
    case DType::kF16:
      return WidenAll<uint16_t>(src, count, dst, [](VI v) HWY_ATTR { return WidenF16(v); });
    case DType::kBF16:
      return WidenAll<uint16_t>(
          src, count, dst, [](VI v) HWY_ATTR { return hn::BitCast(DF(), hn::ShiftLeft<16>(v)); });
    case DType::kF8E4M3:
      return WidenAll<uint8_t>(src, count, dst, [](VI v) HWY_ATTR { return WidenE4M3(DF(), v); });
    case DType::kI8:
      return WidenAll<int8_t>(src, count, dst,
                              [](VI v) HWY_ATTR { return hn::ConvertTo(DF(), v); });
    case DType::kF32:
      break;
  }
  return 0;
}

int64_t StoreVectors(const float* src, int64_t count, DType dtype, void* dst) {
  switch (dtype) {
    case DType::kF16:
      return NarrowAll<uint16_t>(src, count, dst, [](VI v) HWY_ATTR { return NarrowF16(v); });
    case DType::kBF16:
      return NarrowAll<uint16_t>(src, count, dst, [](VI v) HWY_ATTR { return NarrowBF16(v); });
    case DType::kF8E4M3:
      return NarrowAll<uint8_t>(src, count, dst, [](VI v) HWY_ATTR { return NarrowE4M3(v); });
    case DType::kI8:
      return NarrowAll<int8_t>(src, count, dst, [](VI v) HWY_ATTR { return NarrowI8(v); });
    case DType::kF32:
      break;
  }
  return 0;
}

}  // namespace nibble::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::cpu {

HWY_EXPORT(LoadVectors);
HWY_EXPORT(StoreVectors);

void LoadFloats(const void* src, DType dtype, int64_t count, float* dst) {
  if (dtype == DType::kF32) {
    std::memmove(dst, src, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t i = HWY_DYNAMIC_DISPATCH(LoadVectors)(src, dtype, count, dst); i < count; ++i) {
    dst[i] = LoadAsFloat(src, dtype, i);
  }
}

void StoreFloats(const float* src, int64_t count, DType dtype, void* dst) {
  if (dtype == DType::kF32) {
    std::memmove(dst, src, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t i = HWY_DYNAMIC_DISPATCH(StoreVectors)(src, count, dtype, dst); i < count; ++i) {
    StoreFromFloat(dst, dtype, i, src[i]);
  }
}

}  // namespace nibble::cpu
#endif  // HWY_ONCE
