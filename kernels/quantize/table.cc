// NF4 and FP4: the quantization rule of bitsandbytes' CPU backend.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/quantize/dynamic_map.h"
#include "kernels/quantize/encode.h"
#include "kernels/quantize/formats.h"

namespace nibble::quantize {
namespace {

// Elements of a task: many blocks of any size, and a whole number of them.
constexpr int64_t kTaskElements = int64_t{1} << 16;
// Elements that are widened at a time; they stay in the first-level cache.
constexpr int64_t kPieceElements = 4096;
// The library divides by no absmax below this, in binary32.
constexpr float kMinAbsMax = 1e-38f;

// The codes in the order of their values; FP4's two zeros are two steps.
constexpr std::array<uint8_t, 16> kNF4Order = {0, 1, 2,  3,  4,  5,  6,  7,
                                               8, 9, 10, 11, 12, 13, 14, 15};
constexpr std::array<uint8_t, 16> kFP4Order = {11, 10, 13, 12, 15, 14, 9, 0,
                                               8,  1,  6,  7,  4,  5,  2, 3};

CodeTable MakeTable(const float* values, const std::array<uint8_t, 16>& order) {
  CodeTable table{};
  for (size_t i = 0; i < 16; ++i) table.codes[i] = order[i];
  for (size_t i = 0; i < 15; ++i) {
    table.thresholds[i] = (values[order[i]] + values[order[i + 1]]) / 2.0f;
  }
  return table;
}

const CodeTable& TableOf(Format format) {
  static const CodeTable nf4 = MakeTable(kNF4Table, kNF4Order);
  static const CodeTable fp4 = MakeTable(kFP4Table, kFP4Order);
  return format == Format::kNF4 ? nf4 : fp4;
}

// Flat elements [begin, begin + count) of the matrix.
void Gather(const ConstMatrixView& matrix, int64_t begin, int64_t count, float* out) {
  const auto* data = static_cast<const std::byte*>(matrix.data);
  const auto element_bytes = static_cast<int64_t>(DTypeBytes(matrix.dtype));
  if (matrix.row_stride == matrix.cols) {
    cpu::LoadFloats(data + begin * element_bytes, matrix.dtype, count, out);
    return;
  }
  int64_t row = begin / matrix.cols;
  int64_t col = begin % matrix.cols;
  while (count > 0) {
    const int64_t in_row = std::min(count, matrix.cols - col);
    cpu::LoadFloats(data + (row * matrix.row_stride + col) * element_bytes, matrix.dtype, in_row,
                    out);
    out += in_row;
    count -= in_row;
    col = 0;
    ++row;
  }
}

// Packs the codes of one block and returns its absmax. The library treats a partial last block on
// its own: it divides instead of multiplying by the reciprocal, and stores the absmax it divided
// by.
float EncodeBlock(const CodeTable& table, const float* values, int64_t count, bool partial,
                  std::byte* codes) {
  const float absmax = MaxMagnitude(values, count);
  const float divisor = std::max(absmax, kMinAbsMax);
  EncodeTable(table, values, count, partial ? divisor : 1.0f / divisor, partial, codes);
  return partial ? divisor : absmax;
}

HostBytes F32Bytes(std::span<const float> values) {
  const auto bytes = std::as_bytes(values);
  return HostBytes(std::vector<std::byte>(bytes.begin(), bytes.end()));
}

// Replaces the absmax by 8-bit codes of their differences from the mean.
void NestAbsMax(std::span<const float> absmax, CanonicalWeight& weight) {
  double sum = 0.0;
  for (float value : absmax) sum += value;
  const auto offset = static_cast<float>(sum / static_cast<double>(absmax.size()));

  const auto block_size = static_cast<size_t>(weight.spec.nested_block_size);
  std::vector<std::byte> codes(absmax.size());
  std::vector<float> nested_scales;
  for (size_t begin = 0; begin < absmax.size(); begin += block_size) {
    const auto block = absmax.subspan(begin, std::min(block_size, absmax.size() - begin));
    float largest = 0.0f;
    for (float value : block) largest = std::max(largest, std::fabs(value - offset));
    nested_scales.push_back(largest);
    if (largest == 0.0f) continue;  // code 0, as the library has it
    const float inverse = 1.0f / largest;
    for (size_t i = 0; i < block.size(); ++i) {
      codes[begin + i] = static_cast<std::byte>(DynamicCode((block[i] - offset) * inverse));
    }
  }
  weight.scales = HostBytes(std::move(codes));
  weight.nested_scales = F32Bytes(nested_scales);
  weight.nested_map = F32Bytes(SignedDynamicMap());
  weight.nested_offset = offset;
}

}  // namespace

StatusOr<CanonicalWeight> QuantizeTable(Job& job) {
  const WeightSpec& spec = job.spec;
  NIBBLE_ASSIGN_OR_RETURN(const WeightGeometry geometry, GeometryOf(spec));
  const CodeTable& table = TableOf(spec.format);
  const int64_t elements = spec.n * spec.k;
  std::vector<std::byte> codes(static_cast<size_t>(geometry.code_bytes));
  std::vector<float> absmax(static_cast<size_t>(geometry.scale_count));
  const auto encode = [&](int64_t begin, int64_t end, int) {
    alignas(64) float values[kPieceElements];
    bool finite = true;
    for (int64_t piece = begin; piece < end; piece += kPieceElements) {
      const int64_t piece_count = std::min(kPieceElements, end - piece);
      Gather(job.matrix, piece, piece_count, values);
      // Block sizes are even, so no two blocks share a byte.
      for (int64_t i = 0; i < piece_count; i += spec.block_size) {
        const int64_t count = std::min(spec.block_size, piece_count - i);
        const float scale = EncodeBlock(table, values + i, count, count < spec.block_size,
                                        codes.data() + (piece + i) / 2);
        absmax[static_cast<size_t>((piece + i) / spec.block_size)] = scale;
        finite = finite && std::isfinite(scale);
      }
    }
    if (!finite) job.finite = false;
  };
  job.pool.ParallelRanges(elements, kTaskElements, encode);

  CanonicalWeight weight;
  weight.spec = spec;
  weight.codes = HostBytes(std::move(codes));
  if (spec.nested && job.finite) {
    NestAbsMax(absmax, weight);
  } else {
    weight.scales = F32Bytes(absmax);
  }
  return weight;
}

}  // namespace nibble::quantize
