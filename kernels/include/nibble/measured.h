// Measured crossovers: what the built-in table of the selector is replaced with where matmuls of
// one shape have been timed. Plain data and pure functions; who measures is another's affair.
#ifndef NIBBLE_MEASURED_H_
#define NIBBLE_MEASURED_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nibble/selector.h"

namespace nibble {

// What a matmul's time depends on beside its rows.
struct MatmulKey {
  WeightSpec weight;
  DType input = DType::kBF16;
  DType output = DType::kBF16;
  QuantMode activation = QuantMode::kNone;

  bool operator==(const MatmulKey&) const = default;
};
struct MatmulKeyHash {
  size_t operator()(const MatmulKey& key) const;
};

MatmulKey KeyOf(const Problem& problem);
Problem ProblemOf(const MatmulKey& key, int64_t m);
// "int4 4096x4096 group 128 sym, BF16 to BF16".
std::string ToString(const MatmulKey& key);

// The times of a launch with m rows, of every kernel that was timed, in microseconds.
struct MeasuredTime {
  std::string_view kernel;  // a name of KernelNames
  double microseconds = 0;  // > 0

  bool operator==(const MeasuredTime&) const = default;
};
struct MeasuredRows {
  int64_t m = 0;
  std::vector<MeasuredTime> times;

  bool operator==(const MeasuredRows&) const = default;
};
// The time of `kernel`; 0 where it was not timed.
double TimeOf(const MeasuredRows& rows, std::string_view kernel);

// A measured kernel replaces the built-in choice only where it takes at least this share less, so
// that noise does not change kernels.
inline constexpr double kLeastGain = 0.03;

// The choice for rows.m rows: the fastest kernel measured, or Select's own where that is within
// kLeastGain of it or was not timed. Kernels that do not fit do not count.
Choice BestMeasured(const MatmulKey& key, const DeviceInfo& device, const MeasuredRows& rows);

// What is known of one key: the measurements, and the choices that follow from them for
// M = 1 .. rows.back().m.
//
// Between two measured M the upper one's choice counts: kernels work in tiles, and fewer rows take
// about as long as the tile they lie in. Where the two have different kernels, the built-in table
// decides between them if it names one of them.
struct MeasuredMatmul {
  std::vector<MeasuredRows> rows;   // by increasing m, from 1 on
  std::vector<ChoiceRange> ranges;  // in order, without gaps
};
MeasuredMatmul MakeMeasured(const MatmulKey& key, const DeviceInfo& device,
                            std::vector<MeasuredRows> rows);

// Not thread safe.
class MeasuredTable {
 public:
  // Null where the key was not measured; valid until the key is set again.
  const MeasuredMatmul* Find(const MatmulKey& key) const;
  void Set(const MatmulKey& key, MeasuredMatmul measured);
  size_t size() const { return measured_.size(); }
  auto begin() const { return measured_.begin(); }
  auto end() const { return measured_.end(); }

 private:
  std::unordered_map<MatmulKey, MeasuredMatmul, MatmulKeyHash> measured_;
};

// The measured choice, or Select(problem, device) where there is none: `table` is null or does not
// know the problem, it has more rows than were measured, or the device is batch_invariant.
Choice Select(const Problem& problem, const DeviceInfo& device, const MeasuredTable* table);

// ExplainMatmul with the measured choices where there are some; `measured` may be null.
std::vector<ChoiceRange> ExplainMatmul(const MatmulKey& key, const DeviceInfo& device,
                                       const MeasuredMatmul* measured, int64_t max_m);

}  // namespace nibble

#endif  // NIBBLE_MEASURED_H_
