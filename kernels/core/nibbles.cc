#include "nibble/nibbles.h"

#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/core/nibbles.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Words are copied byte by byte, which is only right in their own order.
static_assert(std::endian::native == std::endian::little);

constexpr int64_t kWordsPerLine = 16;

template <int kShift, class D>
HWY_INLINE void Swap(D d, uint32_t mask, hn::Vec<D>& low, hn::Vec<D>& high) {
  const auto moved = hn::And(hn::Xor(hn::ShiftRight<kShift>(low), high), hn::Set(d, mask));
  high = hn::Xor(high, moved);
  low = hn::Xor(low, hn::ShiftLeft<kShift>(moved));
}

// One word of each row in every lane. Halves, quarters and eighths are swapped in turn (Hacker's
// Delight, 7-3).
template <class D>
HWY_INLINE void TransposeLanes(D d, const std::byte* from, int64_t from_stride, std::byte* to,
                               int64_t to_stride) {
  const auto load = [&](int64_t row) {
    return hn::LoadU(d, reinterpret_cast<const uint32_t*>(from + row * from_stride));
  };
  hn::Vec<D> a = load(0), b = load(1), c = load(2), e = load(3);
  hn::Vec<D> f = load(4), g = load(5), h = load(6), i = load(7);
  Swap<16>(d, 0x0000FFFFu, a, f);
  Swap<16>(d, 0x0000FFFFu, b, g);
  Swap<16>(d, 0x0000FFFFu, c, h);
  Swap<16>(d, 0x0000FFFFu, e, i);
  Swap<8>(d, 0x00FF00FFu, a, c);
  Swap<8>(d, 0x00FF00FFu, b, e);
  Swap<8>(d, 0x00FF00FFu, f, h);
  Swap<8>(d, 0x00FF00FFu, g, i);
  Swap<4>(d, 0x0F0F0F0Fu, a, b);
  Swap<4>(d, 0x0F0F0F0Fu, c, e);
  Swap<4>(d, 0x0F0F0F0Fu, f, g);
  Swap<4>(d, 0x0F0F0F0Fu, h, i);
  const auto store = [&](int64_t row, hn::Vec<D> v) {
    hn::StoreU(v, d, reinterpret_cast<uint32_t*>(to + row * to_stride));
  };
  store(0, a);
  store(1, b);
  store(2, c);
  store(3, e);
  store(4, f);
  store(5, g);
  store(6, h);
  store(7, i);
}

void TransposeAll(const std::byte* from, int64_t from_stride, int64_t count, std::byte* to,
                  int64_t to_stride, const std::byte* next) {
  const hn::CappedTag<uint32_t, kWordsPerLine> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t word = 0;
  for (; word + lanes <= count; word += lanes) {
    if (next != nullptr && word % kWordsPerLine == 0) {
      for (int64_t row = 0; row < 8; ++row) {
        __builtin_prefetch(next + row * from_stride + 4 * word, 0, 2);
      }
    }
    TransposeLanes(d, from + 4 * word, from_stride, to + 4 * word, to_stride);
  }
  const int64_t left = count - word;
  if (left <= 0 || left >= kWordsPerLine) return;
  // What is left over, in rows of its own.
  constexpr int64_t kStride = 4 * kWordsPerLine;
  std::byte in[8 * kStride] = {};
  std::byte out[8 * kStride];
  const auto bytes = static_cast<size_t>(4 * left);
  for (int64_t row = 0; row < 8; ++row) {
    std::memcpy(in + row * kStride, from + row * from_stride + 4 * word, bytes);
  }
  TransposeLanes(d, in, kStride, out, kStride);
  for (int64_t row = 0; row < 8; ++row) {
    std::memcpy(to + row * to_stride + 4 * word, out + row * kStride, bytes);
  }
}

}  // namespace
}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {

HWY_EXPORT(TransposeAll);

void TransposeNibbles(const std::byte* from, int64_t from_stride, int64_t count, std::byte* to,
                      int64_t to_stride, const std::byte* next) {
  HWY_DYNAMIC_DISPATCH(TransposeAll)(from, from_stride, count, to, to_stride, next);
}

}  // namespace nibble
#endif  // HWY_ONCE
