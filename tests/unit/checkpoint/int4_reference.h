// An INT4 layer as plain numbers, and its decoded weight.
#ifndef NIBBLE_TESTS_UNIT_CHECKPOINT_INT4_REFERENCE_H_
#define NIBBLE_TESTS_UNIT_CHECKPOINT_INT4_REFERENCE_H_

#include <cstdint>
#include <random>
#include <vector>

#include "nibble/numeric.h"

namespace nibble::checkpoint {

struct Int4Reference {
  int64_t n;
  int64_t k;
  int64_t groups;
  DType scale_dtype = DType::kF16;
  std::vector<int> q;         // [N, K], 0..15
  std::vector<int> zeros;     // [N, G]
  std::vector<float> scales;  // [N, G], representable in scale_dtype
  std::vector<int> group;     // [K]

  Int4Reference(int64_t n_, int64_t k_, int64_t group_size, uint32_t seed = 7)
      : n(n_), k(k_), groups((k_ + group_size - 1) / group_size) {
    std::mt19937 random(seed);
    for (int64_t i = 0; i < n * k; ++i) q.push_back(static_cast<int>(random() % 16));
    for (int64_t i = 0; i < n * groups; ++i) {
      zeros.push_back(8);
      scales.push_back(F16ToFloat(static_cast<uint16_t>(0x2000 + random() % 0x0C00)));
    }
    for (int64_t i = 0; i < k; ++i) group.push_back(static_cast<int>(i / group_size));
  }

  void RandomZeros(int lowest, int highest) {
    std::mt19937 random(11);
    for (int& zero : zeros) {
      zero = lowest + static_cast<int>(random() % static_cast<uint32_t>(highest - lowest + 1));
    }
  }

  int Q(int64_t row, int64_t col) const { return q[static_cast<size_t>(row * k + col)]; }
  int Zero(int64_t row, int64_t g) const { return zeros[static_cast<size_t>(row * groups + g)]; }
  float Scale(int64_t row, int64_t g) const {
    return scales[static_cast<size_t>(row * groups + g)];
  }

  // scales transposed, [G, N].
  std::vector<float> ScalesByGroup() const {
    std::vector<float> out;
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t row = 0; row < n; ++row) out.push_back(Scale(row, g));
    }
    return out;
  }

  std::vector<float> Expected() const {
    std::vector<float> weight;
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t col = 0; col < k; ++col) {
        const int g = group[static_cast<size_t>(col)];
        weight.push_back(static_cast<float>(Q(row, col) - Zero(row, g)) * Scale(row, g));
      }
    }
    return weight;
  }
};

}  // namespace nibble::checkpoint

#endif  // NIBBLE_TESTS_UNIT_CHECKPOINT_INT4_REFERENCE_H_
