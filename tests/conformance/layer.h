// A weight on a device with its float64 oracle, which tests of matmul compare with.
#ifndef NIBBLE_TESTS_CONFORMANCE_LAYER_H_
#define NIBBLE_TESTS_CONFORMANCE_LAYER_H_

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/reference.h"
#include "tests/conformance/runner.h"
#include "tests/conformance/weights.h"
#include "tests/support/tolerance.h"

namespace nibble::conformance {

inline HostMatrix BiasOf(const CanonicalWeight& weight) {
  if (!weight.spec.has_bias) return {};
  HostMatrix bias(weight.spec.bias_dtype, 1, weight.spec.n);
  std::memcpy(bias.bytes.data(), weight.bias.data(), bias.bytes.size());
  return bias;
}

// A weight on a device with its oracle.
class Layer {
 public:
  Layer(const Backend& backend, Runner& runner, const CanonicalWeight& weight)
      : backend_(backend),
        runner_(runner),
        uploaded_(runner.Upload(weight)),
        decoded_(Decode(weight)),
        bias_(BiasOf(weight)),
        w_norms_(RowNorms(ToDoubles(decoded_), decoded_.rows)) {}

  // Activations as float64 [M, K] -> the oracle's y, for MatchesOracle.
  std::vector<double> Oracle(const std::vector<double>& x, int64_t m) const {
    return MatmulOracle(x, m, decoded_, bias_);
  }

  // Runs `input` and compares with the first rows of `oracle`.
  void ExpectOracle(const MatmulInput& input, DType output, const std::vector<double>& x,
                    const std::vector<double>& oracle) {
    const int64_t m = input.x.rows;
    const auto elements = static_cast<size_t>(m);
    const HostMatrix y = runner_.Matmul(*uploaded_, input, output);
    const std::span<const double> rows(oracle.data(), elements * decoded_.rows);
    const std::vector<double> used(x.begin(), x.begin() + m * decoded_.cols);
    const testing::ComparisonReport report = testing::CompareMatmul(
        y.view(), rows, RowNorms(used, m), w_norms_, decoded_.cols, backend_.error_model);
    EXPECT_TRUE(report.ok()) << "M=" << m << " N=" << decoded_.rows << " K=" << decoded_.cols << " "
                             << DTypeName(input.x.dtype) << " -> " << DTypeName(output) << ": "
                             << report.ToString();
  }

  // One problem from random activations.
  void ExpectOracle(int64_t m, DType input, DType output, uint64_t seed) {
    const HostMatrix x = RandomActivations(input, m, decoded_.cols, seed);
    const std::vector<double> doubles = ToDoubles(x);
    ExpectOracle({.x = x}, output, doubles, Oracle(doubles, m));
  }

  void ExpectRepeats(int64_t m, DType input, int repeats, uint64_t seed) {
    const HostMatrix x = RandomActivations(input, m, decoded_.cols, seed);
    const HostMatrix first = runner_.Matmul(*uploaded_, {.x = x}, DType::kF32);
    for (int repeat = 1; repeat < repeats; ++repeat) {
      EXPECT_EQ(runner_.Matmul(*uploaded_, {.x = x}, DType::kF32), first) << "repeat " << repeat;
    }
  }

 private:
  const Backend& backend_;
  Runner& runner_;
  std::unique_ptr<DeviceWeight> uploaded_;
  HostMatrix decoded_;
  HostMatrix bias_;
  std::vector<double> w_norms_;
};

}  // namespace nibble::conformance

#endif  // NIBBLE_TESTS_CONFORMANCE_LAYER_H_
