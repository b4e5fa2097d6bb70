// Weight formats and the geometry that follows from them. N outputs, K inputs; the logical weight
// is W[n][k], row-major [N, K]; a layer computes y[n] = sum_k x[k] * W[n][k] + bias[n].
#ifndef NIBBLE_FORMAT_H_
#define NIBBLE_FORMAT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "nibble/status.h"
#include "nibble/tensor.h"

namespace nibble {

enum class Format : uint8_t {
  kDense,  // not quantized: `dtype` elements [N, K]; a vector (norm gamma) has n = 1
  kNF4,    // 4-bit code into the NF4 table, one absmax per block of flat elements
  kFP4,    // the same with the FP4 table
  kInt4,   // q in 0..15, scale (and zero point) per group of K
  kFP8,    // E4M3, scale per tensor, output channel or block
};

// "dense", "nf4", "fp4", "int4", "fp8": the names used in metrics, replies and flags.
std::string_view FormatName(Format format);
StatusOr<Format> ParseFormat(std::string_view name);

enum class ScaleLayout : uint8_t {
  kTensor,   // one scale
  kChannel,  // one scale per output n
  kBlock,    // one scale per scale_block_n x scale_block_k tile
};

std::string_view ScaleLayoutName(ScaleLayout layout);

// Everything that is known of a weight without its bytes. Fields of other formats keep their
// defaults.
struct WeightSpec {
  Format format = Format::kDense;
  int64_t n = 0;
  int64_t k = 0;
  // What the checkpoint decodes to (its 16- or 32-bit type); for kDense the storage type.
  DType dtype = DType::kBF16;

  // kNF4, kFP4
  int64_t block_size = 64;          // flat elements per absmax; 32..4096, a power of two
  bool nested = false;              // absmax itself stored as 8-bit codes
  int64_t nested_block_size = 256;  // absmax codes per nested absmax

  // kInt4
  int64_t group_size = 128;      // inputs per scale; need not divide k; k or more: one a row
  bool has_zero_points = false;  // else the zero point is 8
  bool has_group_index =
      false;  // act-order: the group of each input column is given, not k / group_size

  // kInt4, kFP8: type of the stored scales (F32, F16 or BF16)
  DType scale_dtype = DType::kF32;

  // kFP8
  ScaleLayout scale_layout = ScaleLayout::kTensor;
  int64_t scale_block_n = 128;
  int64_t scale_block_k = 128;
  bool has_input_scale = false;  // a static activation scale came with the weight

  bool has_bias = false;  // [N] of bias_dtype
  DType bias_dtype = DType::kBF16;

  bool operator==(const WeightSpec&) const = default;
};

// Counts of the canonical layout's elements. All are exact for any n and k, ragged last blocks
// included.
struct WeightGeometry {
  int64_t code_bytes = 0;   // packed weight codes
  int64_t scale_count = 0;  // absmax, group scales or FP8 scales
  int64_t scale_bytes = 0;
  int64_t nested_scale_count = 0;
  int64_t groups = 0;            // kInt4: groups along K, ceil(k / group_size)
  int64_t zero_point_bytes = 0;  // kInt4: one byte a zero point
  int64_t total_bytes = 0;       // of the whole canonical weight, bias and indices included
};

// Checks every field of `spec` (positive sizes, legal block and group sizes, products within 63
// bits) and computes the geometry. kInvalidArgument names the field.
StatusOr<WeightGeometry> GeometryOf(const WeightSpec& spec);

// One line for people: "nf4 4096x14336 block 64 nested", "int4 256x256 group 128 sym", ...
std::string ToString(const WeightSpec& spec);

// Short name of the variant within the format, as used in reports: "plain", "nested", "sym", "zp",
// "tensor", "channel", "block"; with "-act-order" where columns are permuted.
std::string VariantName(const WeightSpec& spec);

// The decode tables, index = code, exact binary32. FP4 code 8 is -0.0, as the GPU kernels of the
// library that defined the format have it.
extern const float kNF4Table[16];
extern const float kFP4Table[16];

}  // namespace nibble

#endif  // NIBBLE_FORMAT_H_
