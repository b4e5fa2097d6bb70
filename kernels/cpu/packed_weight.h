// The CPU backend's private weight layout: codes row by row and padded to whole groups of 32
// inputs, scales widened to binary32, so that one decoder reads every format.
//
//   kDense       [N, K] elements as they came
//   4-bit codes  [N, Kp / 2] bytes, Kp = K rounded up to 32: byte j of each 16-byte group holds the
//                code of input j in its low nibble and of input 16 + j in its high one
//   kFP8         [N, Kp] bytes
//
// With act-order (a group index) the columns are sorted by group: position p of a row holds input
// column[p], and activations are gathered the same way.
#ifndef NIBBLE_KERNELS_CPU_PACKED_WEIGHT_H_
#define NIBBLE_KERNELS_CPU_PACKED_WEIGHT_H_

#include <cstdint>
#include <limits>
#include <memory>

#include "kernels/cpu/memory.h"
#include "nibble/weight.h"

namespace nibble::cpu {

// Inputs that are decoded together.
inline constexpr int64_t kDecodeGroup = 32;

// `k` rounded up to whole groups; saturates.
constexpr int64_t PadInputs(int64_t k) {
  return CheckedMul(CeilDiv(k, kDecodeGroup), kDecodeGroup)
      .value_or(std::numeric_limits<int64_t>::max());
}

// Pointers into one allocation; empty parts are null.
struct PackedWeight {
  WeightSpec spec;
  int64_t k_padded = 0;
  int64_t row_bytes = 0;

  const uint8_t* codes = nullptr;  // N rows of row_bytes
  // One scale for each run of `run_length` inputs. NF4 and FP4: runs of flat elements, [B]. Others:
  // [ceil(N / rows_per_scale), groups].
  const float* scales = nullptr;
  int64_t rows_per_scale = 1;
  int64_t groups = 1;
  int64_t run_length = 0;
  const uint8_t* zero_points = nullptr;  // [N, groups]
  const int64_t* columns = nullptr;      // [K] act-order: input at each position
  const int64_t* run_ends = nullptr;     // [groups] act-order: position past each group's last
  const float* bias = nullptr;           // [N]

  bool flat_runs() const { return spec.format == Format::kNF4 || spec.format == Format::kFP4; }
};

// The parts' sizes and places, in bytes from the start of the allocation.
struct PackedLayout {
  explicit PackedLayout(const WeightSpec& spec);

  int64_t k_padded = 0;
  int64_t row_bytes = 0;
  int64_t groups = 1;
  int64_t run_length = 0;
  int64_t rows_per_scale = 1;
  int64_t scale_count = 0;

  uint64_t codes_offset = 0;
  uint64_t scales_offset = 0;
  uint64_t zero_points_offset = 0;
  uint64_t columns_offset = 0;
  uint64_t run_ends_offset = 0;
  uint64_t bias_offset = 0;
  uint64_t total_bytes = 0;  // saturates where a part is past 63 bits

 private:
  uint64_t Place(int64_t count, int64_t item_bytes);
};

// Fills `memory`, PackedLayout(weight.spec).total_bytes long, from a valid weight.
PackedWeight Pack(const CanonicalWeight& weight, std::byte* memory);

// Walks the runs of one row that share a scale, from position `k` on.
class RunCursor {
 public:
  RunCursor(const PackedWeight& weight, int64_t row, int64_t k);

  // First position past the run; past every position in the last run, so that it covers padding.
  int64_t end() const { return end_; }
  float scale() const { return scales_[run_]; }
  float zero_point() const {
    return zero_points_ == nullptr ? 8.0f : static_cast<float>(zero_points_[run_]);
  }
  void Next() {
    ++run_;
    SetEnd();
  }

 private:
  void SetEnd() {
    if (run_ends_ != nullptr) {
      while (run_ends_[run_] == end_) ++run_;  // groups without a column
      end_ = run_ends_[run_];
    } else {
      end_ = (run_ + 1) * run_length_ - base_;
    }
    if (end_ >= k_) end_ = std::numeric_limits<int64_t>::max();
  }

  const float* scales_;
  const uint8_t* zero_points_ = nullptr;
  const int64_t* run_ends_;
  int64_t run_length_;
  int64_t base_ = 0;  // flat index of the row's first element, where runs are flat
  int64_t k_;
  int64_t run_ = 0;
  int64_t end_ = 0;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_PACKED_WEIGHT_H_
