// Layers of every dialect with random contents, to be compared with themselves loaded otherwise.
#ifndef NIBBLE_TESTS_UNIT_CHECKPOINT_RANDOM_LAYERS_H_
#define NIBBLE_TESTS_UNIT_CHECKPOINT_RANDOM_LAYERS_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "nibble/format.h"
#include "tests/unit/checkpoint/checkpoint_builder.h"

namespace nibble::checkpoint {

class RandomLayers {
 public:
  explicit RandomLayers(CheckpointBuilder* builder) : builder_(*builder) {}

  template <typename T>
  std::vector<T> Bits(int64_t count) {
    std::vector<T> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<T>(random_()));
    return values;
  }
  // Exact in every float type.
  std::vector<float> Floats(int64_t count) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back((static_cast<float>(random_() % 200) - 100.0f) / 64.0f);
    }
    return values;
  }

  void Dense(const std::string& prefix, int64_t n, int64_t k, DType dtype = DType::kBF16) {
    builder_.AddFloats(prefix + ".weight", dtype, {n, k}, Floats(n * k));
  }
  void Bias(const std::string& prefix, int64_t n, DType dtype = DType::kF16) {
    builder_.AddFloats(prefix + ".bias", dtype, {n}, Floats(n));
  }
  void Gptq(const std::string& prefix, int64_t n, int64_t k, int64_t group_size,
            uint32_t zeros = 0) {
    const int64_t groups = k / group_size;
    const auto words = Bits<uint32_t>(groups * n / 8);
    builder_.Add(prefix + ".qweight", "I32", {k / 8, n}, Bits<uint32_t>(k / 8 * n))
        .Add(prefix + ".qzeros", "I32", {groups, n / 8},
             zeros == 0 ? words : std::vector<uint32_t>(words.size(), zeros))
        .AddFloats(prefix + ".scales", DType::kF16, {groups, n}, Floats(groups * n));
  }
  void Awq(const std::string& prefix, int64_t n, int64_t k, int64_t group_size) {
    const int64_t groups = k / group_size;
    builder_.Add(prefix + ".qweight", "I32", {k, n / 8}, Bits<uint32_t>(k * n / 8))
        .Add(prefix + ".qzeros", "I32", {groups, n / 8}, Bits<uint32_t>(groups * n / 8))
        .AddFloats(prefix + ".scales", DType::kF16, {groups, n}, Floats(groups * n));
  }
  void PackQuantized(const std::string& prefix, int64_t n, int64_t k, int64_t groups,
                     bool zero_points = false) {
    builder_
        .Add(prefix + ".weight_packed", "I32", {n, (k + 7) / 8}, Bits<uint32_t>(n * ((k + 7) / 8)))
        .Add(prefix + ".weight_shape", "I64", {2}, std::vector<int64_t>{n, k})
        .AddFloats(prefix + ".weight_scale", DType::kBF16, {n, groups}, Floats(n * groups));
    if (zero_points) {
      builder_.Add(prefix + ".weight_zero_point", "I32", {(n + 7) / 8, groups},
                   Bits<uint32_t>((n + 7) / 8 * groups));
    }
  }
  // Scales of any shape.
  void Fp8(const std::string& prefix, int64_t n, int64_t k, const std::vector<int64_t>& scales) {
    std::vector<uint8_t> codes = Bits<uint8_t>(n * k);
    for (uint8_t& code : codes) code = (code & 0x7F) == 0x7F ? 0 : code;  // no NaN
    int64_t count = 1;
    for (int64_t dim : scales) count *= dim;
    builder_.Add(prefix + ".weight", "F8_E4M3", {n, k}, codes)
        .AddFloats(prefix + ".weight_scale", DType::kF32, scales, Floats(count));
  }
  void Nf4(const std::string& prefix, int64_t n, int64_t k, int64_t block_size, bool nested) {
    const int64_t blocks = (n * k + block_size - 1) / block_size;
    std::string state =
        fmt::format(R"("quant_type":"nf4","blocksize":{},"dtype":"bfloat16","shape":[{},{}])",
                    block_size, n, k);
    if (nested) {
      state += R"(,"nested_blocksize":32,"nested_dtype":"float32","nested_offset":0.3)";
      builder_.Add(prefix + ".weight.absmax", "U8", {blocks}, Bits<uint8_t>(blocks))
          .AddFloats(prefix + ".weight.nested_absmax", DType::kF32, {(blocks + 31) / 32},
                     Floats((blocks + 31) / 32));
      std::vector<float> map;
      for (int i = 0; i < 256; ++i) map.push_back((static_cast<float>(i) - 127.0f) / 131.0f);
      builder_.AddFloats(prefix + ".weight.nested_quant_map", DType::kF32, {256}, map);
    } else {
      builder_.AddFloats(prefix + ".weight.absmax", DType::kF32, {blocks}, Floats(blocks));
    }
    builder_.Add(prefix + ".weight", "U8", {(n * k + 1) / 2, 1}, Bits<uint8_t>((n * k + 1) / 2))
        .AddFloats(prefix + ".weight.quant_map", DType::kF32, {16},
                   std::vector<float>(kNF4Table, kNF4Table + 16))
        .AddText(prefix + ".weight.quant_state.bitsandbytes__nf4", "{" + state + "}");
  }

 private:
  CheckpointBuilder& builder_;
  std::mt19937 random_{23};
};

}  // namespace nibble::checkpoint

#endif  // NIBBLE_TESTS_UNIT_CHECKPOINT_RANDOM_LAYERS_H_
