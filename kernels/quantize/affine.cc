// INT4 and FP8: a scale from the range of the values, then round to nearest.
#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

#include "fmt/format.h"
#include "kernels/cpu/convert.h"
#include "kernels/quantize/encode.h"
#include "kernels/quantize/formats.h"
#include "nibble/numeric.h"
#include "nibble/ops.h"

namespace nibble::quantize {
namespace {

constexpr float kSymmetricSteps = 7.5f;  // amax over the scale: half a step past code 7
constexpr float kAsymmetricSteps = 15.0f;
constexpr int kSymmetricZeroPoint = 8;
constexpr float kMaxE4M3 = 448.0f;
constexpr float kMinF16Scale = 0x1p-24f;  // the smallest value above 0

// The search shrinks the range by steps of 2 % down to half of it.
constexpr int kSearchSteps = 25;
constexpr float kSearchStep = 0.02f;

// Elements that are worth a task.
constexpr int64_t kTaskElements = int64_t{1} << 15;

const std::byte* RowOf(const ConstMatrixView& matrix, int64_t row) {
  return static_cast<const std::byte*>(matrix.data) + row * matrix.row_stride_bytes();
}

// A row of binary32 values for each thread.
class RowBuffers {
 public:
  explicit RowBuffers(const Job& job)
      : stride_(static_cast<size_t>(job.spec.k)),
        values_(stride_ * static_cast<size_t>(job.pool.threads())) {}
  float* Of(int worker) { return values_.data() + stride_ * static_cast<size_t>(worker); }

 private:
  size_t stride_;
  std::vector<float> values_;
};

// Of the scales that do not fit their type, the one that comes first.
class ScaleFault {
 public:
  void Report(int64_t index, float scale) {
    const std::lock_guard lock(mutex_);
    if (index >= index_) return;
    index_ = index;
    scale_ = scale;
  }
  // `cols` scales make a row.
  Status ToStatus(int64_t cols, DType dtype) const {
    if (index_ == std::numeric_limits<int64_t>::max()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("scales[{}, {}]: expected a value within the range of {}; received {}",
                    index_ / cols, index_ % cols, DTypeName(dtype), scale_));
  }

 private:
  std::mutex mutex_;
  int64_t index_ = std::numeric_limits<int64_t>::max();
  float scale_ = 0.0f;
};

// `scale` as it is stored: rounded to `dtype`, at least the floor.
float StoredScale(float scale, DType dtype) {
  const float floor = dtype == DType::kF16 ? kMinF16Scale : kMinQuantScale;
  return std::max(RoundTo(dtype, scale), floor);
}

struct Int4Scale {
  float ideal = 0.0f;
  float scale = 0.0f;
  int zero = kSymmetricZeroPoint;
};

Int4Scale ScaleOfRange(const Range& range, const WeightSpec& spec) {
  Int4Scale found;
  found.ideal = spec.has_zero_points ? (range.high - range.low) / kAsymmetricSteps
                                     : std::max(-range.low, range.high) / kSymmetricSteps;
  found.scale = StoredScale(found.ideal, spec.scale_dtype);
  if (spec.has_zero_points && std::isfinite(found.scale)) {
    found.zero =
        static_cast<int>(std::clamp(std::nearbyint(-range.low / found.scale), 0.0f, 15.0f));
  }
  return found;
}

// The scale of the group's whole range, or of the shrunken range with the least squared error.
Int4Scale ChooseScale(const float* values, int64_t count, const Job& job) {
  const Range range = RangeOf(values, count);
  Int4Scale best = ScaleOfRange(range, job.spec);
  if (!job.options.search_scale || !std::isfinite(best.scale)) return best;
  float least = Int4SquaredError(values, count, best.scale, best.zero);
  for (int step = 1; step <= kSearchSteps; ++step) {
    const float share = 1.0f - kSearchStep * static_cast<float>(step);
    const Int4Scale candidate = ScaleOfRange({range.low * share, range.high * share}, job.spec);
    const float error = Int4SquaredError(values, count, candidate.scale, candidate.zero);
    if (error < least) {
      least = error;
      best = candidate;
    }
  }
  return best;
}

}  // namespace

StatusOr<CanonicalWeight> QuantizeInt4(Job& job) {
  const WeightSpec& spec = job.spec;
  NIBBLE_ASSIGN_OR_RETURN(const WeightGeometry geometry, GeometryOf(spec));
  std::vector<std::byte> codes(static_cast<size_t>(geometry.code_bytes));
  std::vector<std::byte> scales(static_cast<size_t>(geometry.scale_bytes));
  std::vector<std::byte> zero_points(static_cast<size_t>(geometry.zero_point_bytes));
  RowBuffers buffers(job);
  ScaleFault fault;
  const auto encode_group = [&](const float* values, int64_t n, int64_t group) {
    const int64_t begin = group * spec.group_size;
    const int64_t count = std::min(spec.group_size, spec.k - begin);
    const int64_t index = n * geometry.groups + group;
    const Int4Scale chosen = ChooseScale(values + begin, count, job);
    if (!std::isfinite(chosen.scale)) return fault.Report(index, chosen.ideal);
    StoreFromFloat(scales.data(), spec.scale_dtype, index, chosen.scale);
    if (spec.has_zero_points) {
      zero_points[static_cast<size_t>(index)] = static_cast<std::byte>(chosen.zero);
    }
    std::byte* row_codes = codes.data() + n * CeilDiv(spec.k, 2);
    if (begin % 2 == 0) {
      EncodeInt4(values + begin, count, chosen.scale, chosen.zero, row_codes + begin / 2);
      return;
    }
    // The first byte is the end of the group before.
    std::byte first{0};
    EncodeInt4(values + begin, 1, chosen.scale, chosen.zero, &first);
    row_codes[begin / 2] |= first << 4;
    EncodeInt4(values + begin + 1, count - 1, chosen.scale, chosen.zero, row_codes + begin / 2 + 1);
  };
  const auto encode_rows = [&](int64_t begin, int64_t end, int worker) {
    float* values = buffers.Of(worker);
    for (int64_t n = begin; n < end; ++n) {
      cpu::LoadFloats(RowOf(job.matrix, n), job.matrix.dtype, spec.k, values);
      if (!std::isfinite(MaxMagnitude(values, spec.k))) {
        job.finite = false;
        return;
      }
      for (int64_t group = 0; group < geometry.groups; ++group) {
        encode_group(values, n, group);
      }
    }
  };
  job.pool.ParallelRanges(spec.n, std::max<int64_t>(1, kTaskElements / spec.k), encode_rows);
  if (job.finite) NIBBLE_RETURN_IF_ERROR(fault.ToStatus(geometry.groups, spec.scale_dtype));
  CanonicalWeight weight;
  weight.spec = spec;
  weight.codes = HostBytes(std::move(codes));
  weight.scales = HostBytes(std::move(scales));
  weight.zero_points = HostBytes(std::move(zero_points));
  return weight;
}

namespace {

// The tiles of an FP8 weight that share a scale: `rows` x `cols` each, `across` of them side by
// side.
struct Tiling {
  int64_t rows = 1;
  int64_t cols = 1;
  int64_t across = 1;
};

Tiling TilingOf(const WeightSpec& spec) {
  switch (spec.scale_layout) {
    case ScaleLayout::kTensor:
      return {spec.n, spec.k, 1};
    case ScaleLayout::kChannel:
      return {1, spec.k, 1};
    case ScaleLayout::kBlock:
      break;
  }
  return {spec.scale_block_n, spec.scale_block_k, CeilDiv(spec.k, spec.scale_block_k)};
}

class Fp8Quantizer {
 public:
  Fp8Quantizer(Job& job, const WeightGeometry& geometry)
      : job_(job),
        tiling_(TilingOf(job.spec)),
        buffers_(job),
        maxima_(static_cast<size_t>(job.spec.n * tiling_.across)),
        codes_(static_cast<size_t>(geometry.code_bytes)),
        scales_(static_cast<size_t>(geometry.scale_bytes)) {}

  StatusOr<CanonicalWeight> Run() {
    const int64_t rows = job_.spec.n;
    const int64_t grain = std::max<int64_t>(1, kTaskElements / job_.spec.k);
    if (tiling_.rows < rows) {
      // A task is whole tiles high, so that its second pass finds the rows in the cache.
      const int64_t tiles = std::max<int64_t>(1, grain / tiling_.rows);
      job_.pool.ParallelRanges(
          rows, tiles * tiling_.rows, [this](int64_t begin, int64_t end, int worker) {
            Measure(begin, end, worker);
            for (int64_t tile = begin / tiling_.rows; tile * tiling_.rows < end; ++tile) {
              SetScales(tile);
            }
            Encode(begin, end, worker);
          });
    } else {
      job_.pool.ParallelRanges(rows, grain, [this](int64_t begin, int64_t end, int worker) {
        Measure(begin, end, worker);
      });
      SetScales(0);
      job_.pool.ParallelRanges(rows, grain, [this](int64_t begin, int64_t end, int worker) {
        Encode(begin, end, worker);
      });
    }
    if (job_.finite) NIBBLE_RETURN_IF_ERROR(fault_.ToStatus(tiling_.across, job_.spec.scale_dtype));
    CanonicalWeight weight;
    weight.spec = job_.spec;
    weight.codes = HostBytes(std::move(codes_));
    weight.scales = HostBytes(std::move(scales_));
    return weight;
  }

 private:
  // Row n as binary32, in the thread's buffer.
  float* Row(int64_t n, int worker) {
    float* values = buffers_.Of(worker);
    cpu::LoadFloats(RowOf(job_.matrix, n), job_.matrix.dtype, job_.spec.k, values);
    return values;
  }

  int64_t ColsOf(int64_t tile) const {
    return std::min(tiling_.cols, job_.spec.k - tile * tiling_.cols);
  }

  void Measure(int64_t begin, int64_t end, int worker) {
    for (int64_t n = begin; n < end; ++n) {
      const float* values = Row(n, worker);
      for (int64_t tile = 0; tile < tiling_.across; ++tile) {
        const float largest = MaxMagnitude(values + tile * tiling_.cols, ColsOf(tile));
        if (!std::isfinite(largest)) job_.finite = false;
        maxima_[static_cast<size_t>(n * tiling_.across + tile)] = largest;
      }
    }
  }

  // Of one row of tiles.
  void SetScales(int64_t tile_row) {
    const int64_t begin = tile_row * tiling_.rows;
    const int64_t end = std::min(begin + tiling_.rows, job_.spec.n);
    for (int64_t tile = 0; tile < tiling_.across; ++tile) {
      float largest = 0.0f;
      for (int64_t n = begin; n < end; ++n) {
        largest = std::max(largest, maxima_[static_cast<size_t>(n * tiling_.across + tile)]);
      }
      const int64_t index = tile_row * tiling_.across + tile;
      const float scale = StoredScale(largest / kMaxE4M3, job_.spec.scale_dtype);
      if (!std::isfinite(scale)) fault_.Report(index, largest / kMaxE4M3);
      StoreFromFloat(scales_.data(), job_.spec.scale_dtype, index, scale);
    }
  }

  void Encode(int64_t begin, int64_t end, int worker) {
    for (int64_t n = begin; n < end; ++n) {
      float* values = Row(n, worker);
      for (int64_t tile = 0; tile < tiling_.across; ++tile) {
        const float scale = LoadAsFloat(scales_.data(), job_.spec.scale_dtype,
                                        n / tiling_.rows * tiling_.across + tile);
        float* part = values + tile * tiling_.cols;
        DivideBy(scale, part, ColsOf(tile), part);
      }
      cpu::StoreFloats(values, job_.spec.k, DType::kF8E4M3, codes_.data() + n * job_.spec.k);
    }
  }

  Job& job_;
  const Tiling tiling_;
  RowBuffers buffers_;
  std::vector<float> maxima_;  // [N, tiles across]
  std::vector<std::byte> codes_;
  std::vector<std::byte> scales_;
  ScaleFault fault_;
};

}  // namespace

StatusOr<CanonicalWeight> QuantizeFP8(Job& job) {
  NIBBLE_ASSIGN_OR_RETURN(const WeightGeometry geometry, GeometryOf(job.spec));
  return Fp8Quantizer(job, geometry).Run();
}

}  // namespace nibble::quantize
