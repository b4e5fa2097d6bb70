// A weight in host memory, in the one canonical layout of its format, and a weight on a device.
//
// Canonical layouts (FORMATS.md draws them):
//
//   kDense       codes: [N, K] elements of spec.dtype
//   kNF4, kFP4   codes: flat index i = n*K + k; byte i/2 holds the even i in its high nibble, the
//                odd i in its low one; ceil(N*K/2) bytes.
//                scales: plain: F32 absmax [ceil(N*K / block_size)]
//                        nested: U8 codes of the same count, with nested_scales F32
//                        [ceil(count / nested_block_size)], nested_map F32 [256], nested_offset;
//                        absmax[b] = f32(product + nested_offset), no FMA, where product =
//                        f32(nested_map[code] * nested_scales[b / nested_block_size])
//                W = table[code] * absmax[i / block_size]
//   kInt4        codes: row-major [N, ceil(K/2)] bytes, even k in the low nibble
//                scales: [N, G] of spec.scale_dtype, G = ceil(K / group_size)
//                zero_points: U8 [N, G], values 0..15, when spec.has_zero_points
//                group_index: I32 [K], values in [0, G), when spec.has_group_index
//                W = (q - zero) * scale[n][g], g = group_index[k] or k / group_size
//   kFP8         codes: [N, K] E4M3 bytes
//                scales: of spec.scale_dtype: [1], [N] or
//                [ceil(N / scale_block_n), ceil(K / scale_block_k)]
//                W = e4m3 * scale
//
// Products are binary32, rounded once to the output type.
#ifndef NIBBLE_WEIGHT_H_
#define NIBBLE_WEIGHT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nibble/format.h"
#include "nibble/status.h"

namespace nibble {

// Bytes that are either owned or borrowed from something kept alive (a mapped file). Not aligned.
class HostBytes {
 public:
  HostBytes() = default;
  explicit HostBytes(std::vector<std::byte> bytes)
      : HostBytes(std::make_shared<const std::vector<std::byte>>(std::move(bytes))) {}
  HostBytes(std::span<const std::byte> view, std::shared_ptr<const void> keep_alive)
      : view_(view), keep_alive_(std::move(keep_alive)) {}

  const std::byte* data() const { return view_.data(); }
  size_t size() const { return view_.size(); }
  bool empty() const { return view_.empty(); }
  std::span<const std::byte> span() const { return view_; }

 private:
  explicit HostBytes(std::shared_ptr<const std::vector<std::byte>> owned)
      : view_(*owned), keep_alive_(std::move(owned)) {}

  std::span<const std::byte> view_;
  std::shared_ptr<const void> keep_alive_;
};

// Part of a matrix of codes: rows [row, row + rows), inputs [k, k + inputs).
struct CodeTile {
  int64_t row = 0;
  int64_t rows = 0;
  int64_t k = 0;
  int64_t inputs = 0;
};

// The codes of a kInt4 weight that are made when they are asked for, so that a backend can take
// them piece by piece while a piece is in its caches. Thread safe; std::bad_alloc.
class CodeSource {
 public:
  virtual ~CodeSource() = default;
  // The size of tile that is made fastest, multiples of 32; row and k are of no meaning in it.
  virtual CodeTile PreferredTile() const = 0;
  // Writes ceil(inputs / 2) bytes for each row of `tile`, rows `stride` bytes apart. row and k of a
  // tile are multiples of 32; so are rows and inputs, unless they reach to N and K.
  virtual void Read(const CodeTile& tile, std::byte* out, int64_t stride) const = 0;
  // All of them, in the canonical layout.
  virtual HostBytes ReadAll() const = 0;
};

struct CanonicalWeight {
  WeightSpec spec;
  HostBytes codes;
  std::shared_ptr<const CodeSource> code_source;  // kInt4: may stand in for `codes`, then empty
  HostBytes scales;
  HostBytes nested_scales;  // F32
  HostBytes nested_map;     // F32 [256]
  float nested_offset = 0.0f;
  HostBytes zero_points;     // U8
  HostBytes group_index;     // I32
  HostBytes bias;            // spec.bias_dtype [N]
  float input_scale = 1.0f;  // F32, when spec.has_input_scale
};

// Checks that every part of `weight` has exactly the bytes its spec asks for, that zero points are
// at most 15, that group indices lie in range and that an input scale is finite and above 0. A
// backend may read the parts unchecked afterwards. A source of codes has them by itself.
Status ValidateWeight(const CanonicalWeight& weight);

// Rows [row_begin, row_begin + rows) of the decoded weight as binary32, [rows, K], computed one
// element at a time from the formulas above. Slow: the reference that tests and error reports
// compare with. out.size() must be rows * K. Codes must be there, not a source of them.
Status DecodeReference(const CanonicalWeight& weight, int64_t row_begin, int64_t rows,
                       std::span<float> out);

// `weight` with its codes in place of a source of them.
CanonicalWeight WithCodes(CanonicalWeight weight);

// A weight resident on a device, in the backend's private layout. Destroying it frees its memory;
// the caller keeps it alive until the work that reads it has completed.
class DeviceWeight {
 public:
  virtual ~DeviceWeight() = default;
  const WeightSpec& spec() const { return spec_; }
  // Device memory it takes.
  uint64_t bytes() const { return bytes_; }
  float input_scale() const { return input_scale_; }

 protected:
  DeviceWeight(WeightSpec spec, uint64_t bytes, float input_scale)
      : spec_(spec), bytes_(bytes), input_scale_(input_scale) {}
  DeviceWeight(const DeviceWeight&) = delete;
  DeviceWeight& operator=(const DeviceWeight&) = delete;

 private:
  WeightSpec spec_;
  uint64_t bytes_;
  float input_scale_;
};

}  // namespace nibble

#endif  // NIBBLE_WEIGHT_H_
