#include "server/tools/weight_error.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <system_error>
#include <thread>
#include <vector>

namespace nibble::tools {
namespace {

// Elements that are decoded at a time.
constexpr int64_t kPieceElements = int64_t{1} << 16;

struct Sums {
  double original = 0;    // of squares
  double difference = 0;  // of squares
  double largest = 0;
};

Status MeasureRows(const CanonicalWeight& dense, const CanonicalWeight& quantized,
                   int64_t row_begin, int64_t rows, std::vector<float>* buffer, Sums* sums) {
  const auto count = static_cast<size_t>(rows * dense.spec.k);
  const auto original = std::span(*buffer).first(count);
  const auto decoded = std::span(*buffer).subspan(count, count);
  NIBBLE_RETURN_IF_ERROR(DecodeReference(dense, row_begin, rows, original));
  NIBBLE_RETURN_IF_ERROR(DecodeReference(quantized, row_begin, rows, decoded));
  for (size_t i = 0; i < count; ++i) {
    const double value = original[i];
    const double difference = decoded[i] - value;
    sums->original += value * value;
    sums->difference += difference * difference;
    sums->largest = std::max(sums->largest, std::fabs(difference));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<WeightError> MeasureError(const CanonicalWeight& dense, const CanonicalWeight& quantized,
                                   int threads) {
  const int64_t rows = dense.spec.n;
  const int64_t piece_rows = std::clamp<int64_t>(kPieceElements / dense.spec.k, 1, rows);
  const int64_t pieces = CeilDiv(rows, piece_rows);
  std::vector<Sums> sums(static_cast<size_t>(pieces));
  std::vector<Status> statuses(static_cast<size_t>(pieces));
  const int64_t wanted = threads > 0 ? threads : std::thread::hardware_concurrency();
  const auto workers = static_cast<size_t>(std::clamp<int64_t>(wanted, 1, pieces));
  std::vector<std::vector<float>> buffers(
      workers, std::vector<float>(static_cast<size_t>(2 * piece_rows * dense.spec.k)));
  std::atomic<int64_t> next{0};
  const auto work = [&](size_t worker) {
    for (int64_t piece = next++; piece < pieces; piece = next++) {
      const int64_t begin = piece * piece_rows;
      const auto at = static_cast<size_t>(piece);
      statuses[at] = MeasureRows(dense, quantized, begin, std::min(piece_rows, rows - begin),
                                 &buffers[worker], &sums[at]);
    }
  };
  std::vector<std::thread> others;
  try {
    for (size_t worker = 1; worker < workers; ++worker) others.emplace_back(work, worker);
  } catch (const std::system_error&) {
    // Those that did start share the work.
  }
  work(0);
  for (std::thread& other : others) other.join();

  Sums total;
  for (size_t piece = 0; piece < sums.size(); ++piece) {
    NIBBLE_RETURN_IF_ERROR(statuses[piece]);
    total.original += sums[piece].original;
    total.difference += sums[piece].difference;
    total.largest = std::max(total.largest, sums[piece].largest);
  }
  WeightError error;
  if (total.original > 0) error.relative = std::sqrt(total.difference / total.original);
  error.largest = total.largest;
  return error;
}

}  // namespace nibble::tools
