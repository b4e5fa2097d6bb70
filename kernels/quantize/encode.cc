#include "kernels/quantize/encode.h"

#include <algorithm>
#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/encode.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::quantize::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;

// Values are taken 16 at a time whatever the vectors' length; what is left over is padded.
constexpr int64_t kStep = 16;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(DF()));
constexpr int64_t kVectors = kStep / kLanes;

// Calls step(v, i) with kStep values at v for i = 0, kStep, ...; past the end the values are
// `padding`.
template <class Step>
HWY_INLINE void ForEachStep(const float* values, int64_t count, float padding, const Step& step) {
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) step(values + i, i);
  if (i == count) return;
  float rest[kStep];
  std::fill(std::copy(values + i, values + count, rest), rest + kStep, padding);
  step(rest, i);
}

// codes[i] = map[codes[i]]: both 16 bytes.
HWY_INLINE void MapCodes(const uint8_t* map, uint8_t* codes) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t i = 0; i < kStep; ++i) codes[i] = map[codes[i]];
#else
  const hn::FixedTag<uint8_t, kStep> d;
  hn::Store(hn::TableLookupBytes(hn::LoadU(d, map), hn::Load(d, codes)), d, codes);
#endif
}

// Eight codes, a byte each, as four bytes of pairs.
template <int even_shift, int odd_shift>
HWY_INLINE uint32_t Paired(uint64_t codes) {
  constexpr uint64_t kEven = 0x000F000F000F000F;
  uint64_t pairs = (codes & kEven) << even_shift | (codes >> 8 & kEven) << odd_shift;
  pairs = (pairs | pairs >> 8) & 0x0000FFFF0000FFFF;
  return static_cast<uint32_t>(pairs | pairs >> 16);
}

// Pairs 16 codes, one a lane, into `bytes` of 8 bytes: even_shift and odd_shift say where each
// goes. map: 16 bytes that take the place of codes 0..15, or null.
template <int even_shift, int odd_shift>
HWY_INLINE void StorePairs(const VI* codes, const uint8_t* map, int64_t bytes, std::byte* out) {
  const hn::Rebind<uint8_t, DF> d8;
  alignas(16) uint8_t unpacked[kStep];
  for (int64_t v = 0; v < kVectors; ++v) {
    hn::StoreU(hn::DemoteTo(d8, codes[v]), d8, unpacked + v * kLanes);
  }
  if (map != nullptr) MapCodes(map, unpacked);
  uint64_t halves[2];
  std::memcpy(halves, unpacked, kStep);
  const uint64_t packed = Paired<even_shift, odd_shift>(halves[0]) |
                          static_cast<uint64_t>(Paired<even_shift, odd_shift>(halves[1])) << 32;
  std::memcpy(out, &packed, static_cast<size_t>(bytes));
}

int64_t BytesOfStep(int64_t i, int64_t count) { return (std::min(kStep, count - i) + 1) / 2; }

struct Int4Rule {
  VF scale;
  VF zero;

  // As binary32: codes are small.
  HWY_INLINE VF Codes(VF values) const {
    const DF df;
    const VF q = hn::Add(hn::Round(hn::Div(values, scale)), zero);
    return hn::Min(hn::Max(q, hn::Zero(df)), hn::Set(df, 15.0f));
  }
};

// How many of the 15 ascending thresholds lie below each u.
HWY_INLINE VI CountBelow(const float* thresholds, VF u) {
  const DF df;
  const DI di;
  VI count = hn::Zero(di);
  if constexpr (kLanes == 16) {
    // Binary search, the thresholds in one vector. What stands past the last one is never read.
    const VF all = hn::MaskedLoad(hn::FirstN(df, 15), df, thresholds);
    for (int step : {8, 4, 2, 1}) {
      const VI next = hn::Add(count, hn::Set(di, step));
      const auto indices = hn::IndicesFromVec(df, hn::Sub(next, hn::Set(di, 1)));
      const auto above = hn::RebindMask(di, hn::Gt(u, hn::TableLookupLanes(all, indices)));
      count = hn::IfThenElse(above, next, count);
    }
  } else {
    for (int i = 0; i < 15; ++i) {
      // A mask's lanes are -1 where it is true.
      const auto above = hn::RebindMask(di, hn::Gt(u, hn::Set(df, thresholds[i])));
      count = hn::Sub(count, hn::VecFromMask(di, above));
    }
  }
  return count;
}

}  // namespace

float MaxMagnitudeOf(const float* values, int64_t count) {
  const DF df;
  const DI di;
  VI largest[kVectors];
  for (VI& v : largest) v = hn::Zero(di);
  ForEachStep(values, count, 0.0f, [&](const float* at, int64_t) HWY_ATTR {
    for (int64_t v = 0; v < kVectors; ++v) {
      const VI bits = hn::BitCast(di, hn::LoadU(df, at + v * kLanes));
      largest[v] = hn::Max(largest[v], hn::And(bits, hn::Set(di, 0x7FFFFFFF)));
    }
  });
  for (int64_t v = 1; v < kVectors; ++v) largest[0] = hn::Max(largest[0], largest[v]);
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, largest[0])));
}

Range RangeOfAll(const float* values, int64_t count) {
  const DF df;
  VF low = hn::Zero(df);
  VF high = hn::Zero(df);
  ForEachStep(values, count, 0.0f, [&](const float* at, int64_t) HWY_ATTR {
    for (int64_t v = 0; v < kVectors; ++v) {
      const VF value = hn::LoadU(df, at + v * kLanes);
      low = hn::Min(low, value);
      high = hn::Max(high, value);
    }
  });
  return {hn::GetLane(hn::MinOfLanes(df, low)), hn::GetLane(hn::MaxOfLanes(df, high))};
}

void EncodeTableAll(const CodeTable& table, const float* values, int64_t count, float factor,
                    bool by_division, std::byte* codes) {
  const DF df;
  const VF vector_factor = hn::Set(df, factor);
  ForEachStep(values, count, 0.0f, [&](const float* at, int64_t i) HWY_ATTR {
    VI indices[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) {
      const VF value = hn::LoadU(df, at + v * kLanes);
      const VF u = by_division ? hn::Div(value, vector_factor) : hn::Mul(value, vector_factor);
      indices[v] = CountBelow(table.thresholds, u);
    }
    StorePairs<4, 0>(indices, table.codes, BytesOfStep(i, count), codes + i / 2);
  });
}

void EncodeInt4All(const float* values, int64_t count, float scale, int zero, std::byte* codes) {
  const DF df;
  const Int4Rule rule{hn::Set(df, scale), hn::Set(df, static_cast<float>(zero))};
  ForEachStep(values, count, 0.0f, [&](const float* at, int64_t i) HWY_ATTR {
    VI q[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) {
      q[v] = hn::ConvertTo(DI(), rule.Codes(hn::LoadU(df, at + v * kLanes)));
    }
    StorePairs<0, 4>(q, nullptr, BytesOfStep(i, count), codes + i / 2);
  });
  if (count % 2 != 0) codes[count / 2] &= std::byte{15};
}

float Int4SquaredErrorOf(const float* values, int64_t count, float scale, int zero) {
  const DF df;
  const Int4Rule rule{hn::Set(df, scale), hn::Set(df, static_cast<float>(zero))};
  VF sums[kVectors];
  for (VF& v : sums) v = hn::Zero(df);
  ForEachStep(values, count, 0.0f, [&](const float* at, int64_t) HWY_ATTR {
    for (int64_t v = 0; v < kVectors; ++v) {
      const VF value = hn::LoadU(df, at + v * kLanes);
      const VF decoded = hn::Mul(hn::Sub(rule.Codes(value), rule.zero), rule.scale);
      const VF error = hn::Sub(value, decoded);
      sums[v] = hn::Add(sums[v], hn::Mul(error, error));
    }
  });
  float lanes[kStep];
  for (int64_t v = 0; v < kVectors; ++v) hn::StoreU(sums[v], df, lanes + v * kLanes);
  for (int64_t width = kStep / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

void DivideAllBy(float scale, const float* values, int64_t count, float* out) {
  const DF df;
  const VF divisor = hn::Set(df, scale);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(hn::Div(hn::LoadU(df, values + i), divisor), df, out + i);
  }
  for (; i < count; ++i) out[i] = values[i] / scale;
}

}  // namespace nibble::quantize::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::quantize {

HWY_EXPORT(MaxMagnitudeOf);
HWY_EXPORT(RangeOfAll);
HWY_EXPORT(EncodeTableAll);
HWY_EXPORT(EncodeInt4All);
HWY_EXPORT(Int4SquaredErrorOf);
HWY_EXPORT(DivideAllBy);

float MaxMagnitude(const float* values, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(MaxMagnitudeOf)(values, count);
}

Range RangeOf(const float* values, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(RangeOfAll)(values, count);
}

void EncodeTable(const CodeTable& table, const float* values, int64_t count, float factor,
                 bool by_division, std::byte* codes) {
  HWY_DYNAMIC_DISPATCH(EncodeTableAll)(table, values, count, factor, by_division, codes);
}

void EncodeInt4(const float* values, int64_t count, float scale, int zero, std::byte* codes) {
  HWY_DYNAMIC_DISPATCH(EncodeInt4All)(values, count, scale, zero, codes);
}

float Int4SquaredError(const float* values, int64_t count, float scale, int zero) {
  return HWY_DYNAMIC_DISPATCH(Int4SquaredErrorOf)(values, count, scale, zero);
}

void DivideBy(float scale, const float* values, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(DivideAllBy)(scale, values, count, out);
}

}  // namespace nibble::quantize
#endif  // HWY_ONCE
