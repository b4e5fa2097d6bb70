#include "client/cpp/load/distribution.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "fmt/format.h"

namespace nibble::load {
namespace {

constexpr size_t kMostNumbers = 1000;
constexpr double kGeometricCut = 16.0;
constexpr std::string_view kGeometric = "geometric:";

template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

}  // namespace

absl::StatusOr<RowCounts> RowCounts::Parse(std::string_view text) {
  RowCounts rows;
  if (text.starts_with(kGeometric)) {
    const std::optional<double> mean = ParseNumber<double>(text.substr(kGeometric.size()));
    if (!mean || !(*mean >= 1.0) || !(*mean * kGeometricCut <= static_cast<double>(kMost))) {
      return absl::InvalidArgumentError(
          fmt::format("--rows: expected geometric:MEAN with a mean of 1..{}, received \"{}\"",
                      kMost / static_cast<int64_t>(kGeometricCut), text));
    }
    rows.mean_ = *mean;
    rows.largest_ = static_cast<int64_t>(std::floor(*mean * kGeometricCut));
    return rows;
  }
  for (const std::string_view part : Split(text, ',')) {
    const std::optional<int64_t> count = ParseNumber<int64_t>(part);
    if (!count || *count < 1 || *count > kMost) {
      return absl::InvalidArgumentError(
          fmt::format("--rows: expected counts of 1..{} (\"8\", \"1,8,64\" or \"geometric:8\"), "
                      "received \"{}\"",
                      kMost, text));
    }
    rows.counts_.push_back(*count);
    rows.largest_ = std::max(rows.largest_, *count);
  }
  return rows;
}

int64_t RowCounts::Draw(Random& random) const {
  if (counts_.size() == 1) return counts_.front();
  if (!counts_.empty()) {
    return counts_[std::uniform_int_distribution<size_t>(0, counts_.size() - 1)(random)];
  }
  if (mean_ == 1.0) return 1;
  const int64_t drawn = 1 + std::geometric_distribution<int64_t>(1.0 / mean_)(random);
  return std::min(drawn, largest_);
}

absl::StatusOr<std::vector<double>> ParseNumbers(const std::string& flag, std::string_view text,
                                                 double least, double most) {
  const auto wrong = [&] {
    return absl::InvalidArgumentError(
        fmt::format("{}: expected numbers of {:g}..{:g} such as \"4\", \"1,4,16\", \"1:64:x2\" or "
                    "\"100:500:+100\", received \"{}\"",
                    flag, least, most, text));
  };
  std::vector<double> numbers;
  for (const std::string_view part : Split(text, ',')) {
    const std::vector<std::string_view> range = Split(part, ':');
    const std::optional<double> first = ParseNumber<double>(range[0]);
    if (!first || !(*first >= least && *first <= most)) return wrong();
    if (range.size() == 1) {
      numbers.push_back(*first);
      if (numbers.size() > kMostNumbers) return wrong();
      continue;
    }
    if (range.size() != 3 || range[2].size() < 2) return wrong();
    const std::optional<double> last = ParseNumber<double>(range[1]);
    const std::optional<double> step = ParseNumber<double>(range[2].substr(1));
    const bool times = range[2][0] == 'x';
    if (!last || !step || (!times && range[2][0] != '+')) return wrong();
    if (!(*last >= *first && *last <= most) || !(*step > (times ? 1.0 : 0.0))) return wrong();
    for (double value = *first; value <= *last; value = times ? value * *step : value + *step) {
      numbers.push_back(value);
      if (numbers.size() > kMostNumbers) return wrong();
    }
  }
  return numbers;
}

ArrivalSchedule::ArrivalSchedule(Arrivals arrivals, double rate, uint64_t seed)
    : arrivals_(arrivals), gap_ns_(1e9 / rate), random_(seed) {}

int64_t ArrivalSchedule::Next() {
  if (arrivals_ == Arrivals::kConstant) {
    // By multiplication, so that no rounding error adds up.
    return std::llround(static_cast<double>(sent_++) * gap_ns_);
  }
  at_ns_ += std::exponential_distribution<double>(1.0)(random_) * gap_ns_;
  return std::llround(at_ns_);
}

bool MatchesPattern(std::string_view pattern, std::string_view text) {
  return fnmatch(std::string(pattern).c_str(), std::string(text).c_str(), 0) == 0;
}

}  // namespace nibble::load
