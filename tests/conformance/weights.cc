#include "tests/conformance/weights.h"

#include <algorithm>
#include <span>
#include <utility>

#include "gtest/gtest.h"

namespace nibble::conformance {
namespace {

Variant Dense(std::string name, DType dtype) {
  Variant variant{std::move(name), {}};
  variant.spec.format = Format::kDense;
  variant.spec.dtype = dtype;
  return variant;
}

Variant Table(std::string name, Format format, int64_t block_size, bool nested) {
  Variant variant{std::move(name), {}};
  variant.spec.format = format;
  variant.spec.block_size = block_size;
  variant.spec.nested = nested;
  return variant;
}

Variant Int4(std::string name, int64_t group_size, DType scale_dtype, bool zero_points,
             bool group_index) {
  Variant variant{std::move(name), {}};
  variant.spec.format = Format::kInt4;
  variant.spec.group_size = group_size;
  variant.spec.scale_dtype = scale_dtype;
  variant.spec.has_zero_points = zero_points;
  variant.spec.has_group_index = group_index;
  return variant;
}

Variant Fp8(std::string name, ScaleLayout layout, DType scale_dtype) {
  Variant variant{std::move(name), {}};
  variant.spec.format = Format::kFP8;
  variant.spec.scale_layout = layout;
  variant.spec.scale_dtype = scale_dtype;
  return variant;
}

Variant WithBias(Variant variant, DType bias_dtype) {
  variant.name += "_bias";
  variant.spec.has_bias = true;
  variant.spec.bias_dtype = bias_dtype;
  return variant;
}

HostBytes RandomBytes(int64_t count, Random& random) {
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Bits() & 0xFF);
  return HostBytes(std::move(bytes));
}

HostBytes RandomFloats(DType dtype, int64_t count, float low, float high, Random& random) {
  HostMatrix floats(dtype, 1, count);
  for (int64_t i = 0; i < count; ++i) floats.Set(0, i, random.Uniform(low, high));
  return HostBytes(std::move(floats.bytes));
}

// Every group keeps its size, its members are scattered over the columns.
HostBytes RandomGroupIndex(const WeightSpec& spec, Random& random) {
  std::vector<int32_t> index(static_cast<size_t>(spec.k));
  for (int64_t k = 0; k < spec.k; ++k) {
    index[static_cast<size_t>(k)] = static_cast<int32_t>(k / spec.group_size);
  }
  for (int64_t k = spec.k - 1; k > 0; --k) {
    std::swap(index[static_cast<size_t>(k)], index[static_cast<size_t>(random.Below(k + 1))]);
  }
  const auto bytes = std::as_bytes(std::span(index));
  return HostBytes(std::vector<std::byte>(bytes.begin(), bytes.end()));
}

void FillTable(CanonicalWeight& weight, const WeightGeometry& geometry, Random& random) {
  weight.codes = RandomBytes(geometry.code_bytes, random);
  if (!weight.spec.nested) {
    weight.scales = RandomFloats(DType::kF32, geometry.scale_count, 0.01f, 0.1f, random);
    return;
  }
  weight.scales = RandomBytes(geometry.scale_count, random);
  weight.nested_scales =
      RandomFloats(DType::kF32, geometry.nested_scale_count, 0.01f, 0.04f, random);
  weight.nested_map = RandomFloats(DType::kF32, 256, -1.0f, 1.0f, random);
  weight.nested_offset = 0.0512f;
}

void FillFp8(CanonicalWeight& weight, const WeightGeometry& geometry, Random& random) {
  std::vector<std::byte> codes(static_cast<size_t>(geometry.code_bytes));
  for (std::byte& code : codes) {
    // 254 codes that are numbers: 0x7F and 0xFF are left out.
    const int64_t number = random.Below(254);
    code = static_cast<std::byte>(number < 127 ? number : number + 1);
  }
  weight.codes = HostBytes(std::move(codes));
  weight.scales =
      RandomFloats(weight.spec.scale_dtype, geometry.scale_count, 0.0005f, 0.004f, random);
}

}  // namespace

WeightSpec Variant::SpecOf(int64_t n, int64_t k) const {
  WeightSpec result = spec;
  result.n = n;
  result.k = k;
  if (whole_column) result.group_size = k;
  return result;
}

std::vector<Variant> Fp8Variants() {
  Variant ragged = Fp8("fp8_block_32x48", ScaleLayout::kBlock, DType::kF16);
  ragged.spec.scale_block_n = 32;
  ragged.spec.scale_block_k = 48;
  return {Fp8("fp8_tensor", ScaleLayout::kTensor, DType::kF32),
          WithBias(Fp8("fp8_channel", ScaleLayout::kChannel, DType::kBF16), DType::kF16),
          Fp8("fp8_block", ScaleLayout::kBlock, DType::kBF16), std::move(ragged)};
}

std::vector<Variant> AllVariants() {
  Variant column = Int4("int4_column", 128, DType::kF32, true, false);
  column.whole_column = true;
  std::vector<Variant> variants = {
      Dense("dense_f32", DType::kF32),
      WithBias(Dense("dense_f16", DType::kF16), DType::kF32),
      Dense("dense_bf16", DType::kBF16),
      Table("nf4", Format::kNF4, 64, false),
      WithBias(Table("nf4_block_32", Format::kNF4, 32, false), DType::kBF16),
      Table("nf4_block_4096", Format::kNF4, 4096, false),
      Table("nf4_nested", Format::kNF4, 64, true),
      Table("fp4", Format::kFP4, 64, false),
      Table("fp4_nested", Format::kFP4, 128, true),
      Int4("int4_group_128", 128, DType::kF16, false, false),
      WithBias(Int4("int4_group_64_zp", 64, DType::kBF16, true, false), DType::kF16),
      Int4("int4_group_32_zp", 32, DType::kF16, true, false),
      Int4("int4_group_40_zp", 40, DType::kF32, true, false),
      std::move(column),
      Int4("int4_act_order", 128, DType::kF16, false, true),
      Int4("int4_act_order_zp", 32, DType::kF32, true, true),
  };
  std::ranges::move(Fp8Variants(), std::back_inserter(variants));
  return variants;
}

CanonicalWeight RandomWeight(const WeightSpec& spec, uint64_t seed) {
  Random random(seed);
  CanonicalWeight weight;
  weight.spec = spec;
  const StatusOr<WeightGeometry> geometry = GeometryOf(spec);
  EXPECT_TRUE(geometry.ok()) << geometry.status();
  if (!geometry.ok()) return weight;
  switch (spec.format) {
    case Format::kDense:
      weight.codes = RandomFloats(spec.dtype, spec.n * spec.k, -0.1f, 0.1f, random);
      break;
    case Format::kNF4:
    case Format::kFP4:
      FillTable(weight, *geometry, random);
      break;
    case Format::kInt4:
      weight.codes = RandomBytes(geometry->code_bytes, random);
      weight.scales = RandomFloats(spec.scale_dtype, geometry->scale_count, 0.002f, 0.02f, random);
      break;
    case Format::kFP8:
      FillFp8(weight, *geometry, random);
      break;
  }
  if (geometry->zero_point_bytes > 0) {
    std::vector<std::byte> zeros(static_cast<size_t>(geometry->zero_point_bytes));
    for (std::byte& zero : zeros) zero = static_cast<std::byte>(random.Below(16));
    weight.zero_points = HostBytes(std::move(zeros));
  }
  if (spec.has_group_index) weight.group_index = RandomGroupIndex(spec, random);
  if (spec.has_bias) weight.bias = RandomFloats(spec.bias_dtype, spec.n, -1.0f, 1.0f, random);
  return weight;
}

HostMatrix Decode(const CanonicalWeight& weight) {
  HostMatrix decoded(DType::kF32, weight.spec.n, weight.spec.k);
  std::vector<float> values(static_cast<size_t>(weight.spec.n * weight.spec.k));
  const Status status = DecodeReference(weight, 0, weight.spec.n, values);
  EXPECT_TRUE(status.ok()) << status;
  std::memcpy(decoded.bytes.data(), values.data(), decoded.bytes.size());
  return decoded;
}

HostBytes ToHostBytes(const HostMatrix& matrix) { return HostBytes(matrix.bytes); }

}  // namespace nibble::conformance
