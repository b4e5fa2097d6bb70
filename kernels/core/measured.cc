#include "nibble/measured.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "fmt/format.h"

namespace nibble {
namespace {

void Append(std::vector<ChoiceRange>& ranges, const ChoiceRange& range) {
  if (range.m_begin > range.m_end) return;
  if (!ranges.empty() && ranges.back().choice == range.choice &&
      ranges.back().measured == range.measured) {
    ranges.back().m_end = range.m_end;
  } else {
    ranges.push_back(range);
  }
}

// Of two rows measured with different kernels: what lies between them and is not measured.
void AppendBetween(const MatmulKey& key, const DeviceInfo& device, const ChoiceRange& lower,
                   const Choice& upper, int64_t m_end, std::vector<ChoiceRange>& ranges) {
  for (const ChoiceRange& built_in : ExplainMatmul(key, device, nullptr, m_end)) {
    ChoiceRange part = built_in;
    part.m_begin = std::max(part.m_begin, lower.m_end + 1);
    const std::string_view kernel = part.choice.kernel;
    if (kernel != lower.choice.kernel && kernel != upper.kernel) {
      part.choice = upper;
      part.measured = true;
    }
    Append(ranges, part);
  }
}

}  // namespace

MatmulKey KeyOf(const Problem& problem) {
  return {problem.weight, problem.input, problem.output, problem.quant};
}

Problem ProblemOf(const MatmulKey& key, int64_t m) {
  Problem problem;
  problem.weight = key.weight;
  problem.m = m;
  problem.input = key.input;
  problem.output = key.output;
  problem.quant = key.activation;
  return problem;
}

std::string ToString(const MatmulKey& key) {
  return fmt::format("{}, {} to {}{}", ToString(key.weight), DTypeName(key.input),
                     DTypeName(key.output),
                     key.activation == QuantMode::kNone
                         ? ""
                         : fmt::format(", activations {}", QuantModeName(key.activation)));
}

double TimeOf(const MeasuredRows& rows, std::string_view kernel) {
  const auto found = std::ranges::find(rows.times, kernel, &MeasuredTime::kernel);
  return found == rows.times.end() ? 0.0 : found->microseconds;
}

Choice BestMeasured(const MatmulKey& key, const DeviceInfo& device, const MeasuredRows& rows) {
  const std::vector<Choice> candidates = MatmulCandidates(ProblemOf(key, rows.m), device);
  Choice best = candidates.front();
  double least = TimeOf(rows, best.kernel) * (1.0 - kLeastGain);
  for (const Choice& candidate : candidates) {
    const double us = TimeOf(rows, candidate.kernel);
    if (us > 0.0 && us <= least) {
      best = candidate;
      least = us;
    }
  }
  return best;
}

MeasuredMatmul MakeMeasured(const MatmulKey& key, const DeviceInfo& device,
                            std::vector<MeasuredRows> rows) {
  MeasuredMatmul measured;
  ChoiceRange lower;  // the last measured rows
  for (const MeasuredRows& at : rows) {
    const Choice choice = BestMeasured(key, device, at);
    const bool timed = TimeOf(at, choice.kernel) > 0.0;
    int64_t begin = lower.m_end + 1;
    if (lower.m_end > 0 && lower.choice.kernel != choice.kernel) {
      AppendBetween(key, device, lower, choice, at.m - 1, measured.ranges);
      begin = at.m;
    }
    Append(measured.ranges, {begin, at.m, choice, timed});
    lower = {at.m, at.m, choice, timed};
  }
  measured.rows = std::move(rows);
  return measured;
}

size_t MatmulKeyHash::operator()(const MatmulKey& key) const {
  size_t hash = 0;
  const auto mix = [&hash](auto value) {
    // As boost::hash_combine.
    hash ^= std::hash<int64_t>{}(static_cast<int64_t>(value)) + 0x9e3779b97f4a7c15u + (hash << 6) +
            (hash >> 2);
  };
  // Other fields seldom tell two keys apart.
  mix(key.weight.format);
  mix(key.weight.n);
  mix(key.weight.k);
  mix(key.weight.has_bias);
  mix(key.input);
  mix(key.output);
  mix(key.activation);
  return hash;
}

const MeasuredMatmul* MeasuredTable::Find(const MatmulKey& key) const {
  const auto found = measured_.find(key);
  return found == measured_.end() ? nullptr : &found->second;
}

void MeasuredTable::Set(const MatmulKey& key, MeasuredMatmul measured) {
  measured_.insert_or_assign(key, std::move(measured));
}

Choice Select(const Problem& problem, const DeviceInfo& device, const MeasuredTable* table) {
  if (table != nullptr && problem.op == Op::kMatmul && !device.batch_invariant) {
    const MeasuredMatmul* measured = table->Find(KeyOf(problem));
    if (measured != nullptr) {
      const auto range =
          std::ranges::lower_bound(measured->ranges, problem.m, {}, &ChoiceRange::m_end);
      if (range != measured->ranges.end()) return range->choice;
    }
  }
  return Select(problem, device);
}

std::vector<ChoiceRange> ExplainMatmul(const MatmulKey& key, const DeviceInfo& device,
                                       const MeasuredMatmul* measured, int64_t max_m) {
  const std::vector<ChoiceRange> built_in =
      ExplainMatmul(key.weight, key.input, key.output, key.activation, device, max_m);
  if (measured == nullptr || device.batch_invariant) return built_in;
  std::vector<ChoiceRange> ranges;
  int64_t known = 0;
  for (ChoiceRange range : measured->ranges) {
    range.m_end = std::min(range.m_end, max_m);
    Append(ranges, range);
    if (range.m_begin <= range.m_end) known = range.m_end;
  }
  for (ChoiceRange range : built_in) {
    range.m_begin = std::max(range.m_begin, known + 1);
    Append(ranges, range);
  }
  return ranges;
}

}  // namespace nibble
