#include "kernels/core/roofline.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/core/packed_units.h"

namespace nibble::core {
namespace {

// The chip that the selector's table was measured on: bytes a second read, and operations a second
// of 16-bit products with binary32 sums.
constexpr double kMeasuredBandwidth = 4.5e12;
constexpr double kMeasuredTensorFlops = 790e12;
constexpr int kMeasuredCores = 132;

constexpr int64_t kMostSteps = 4096;  // rows

double Ceil(double value, double unit) { return std::ceil(value / unit); }

// What mma.sync reaches of the tensor peak: all of it where there is no other instruction, 62 % on
// Hopper (measured); guesses past it.
double MmaShare(int compute_capability) {
  switch (compute_capability / 10) {
    case 8:
    case 12:
      return 1.0;
    case 9:
      return 0.62;
    case 10:
      return 0.3;
    default:
      return 0.5;
  }
}

// Bytes of the weight as it lies in device memory: nested scales are expanded.
double PackedBytes(const WeightSpec& spec) {
  const StatusOr<WeightGeometry> geometry = GeometryOf(spec);
  if (!geometry.ok()) return 0.0;
  const bool table = HasTable(spec.format);
  const double nested = table && spec.nested ? 3.0 * static_cast<double>(geometry->scale_count) : 0;
  return static_cast<double>(geometry->total_bytes) + nested;
}

// One matmul on one chip. Times are in seconds; efficiencies are shares of the two peaks.
class Model {
 public:
  Model(const Problem& problem, const DeviceInfo& device)
      : problem_(problem),
        m_(static_cast<double>(problem.m)),
        n_(static_cast<double>(problem.weight.n)),
        k_(static_cast<double>(problem.weight.k)),
        weight_(PackedBytes(problem.weight)),
        y_bytes_(m_ * n_ * static_cast<double>(DTypeBytes(problem.output))),
        fp8_(problem.weight.format == Format::kFP8),
        bandwidth_(device.peak_bandwidth_bytes_per_second),
        flops_(device.peak_tensor_flops_per_second),
        cores_(std::max(1, device.cores)),
        compute_capability_(device.compute_capability) {}

  double Seconds(std::string_view kernel) const {
    if (kernel == "cuda_gemv" || kernel == "cuda_gemv_chain") return Gemv();
    if (kernel == "cuda_mma") return Mma();
    if (kernel == "cuda_wgmma") return Wgmma();
    if (kernel == "cuda_wgmma_chain") return WgmmaChain();
    if (kernel == "cuda_gemm") return Gemm();
    if (kernel == "cuda_fp8_gemm") return Fp8Gemm();
    if (kernel == "cuda_fp8_cublas") return Fp8Cublas();
    return GemmF32();
  }

 private:
  static constexpr double kUs = 1e-6;

  double Flops(double rows) const { return 2.0 * rows * n_ * k_; }

  // Activations quantized by a kernel in front.
  double Quantize() const {
    if (problem_.quant == QuantMode::kNone || problem_.input == DType::kF8E4M3) return 0.0;
    return 2.5 * kUs + m_ * k_ * 3.0 / (0.9 * bandwidth_);
  }

  // Each launch reads the weight again, and each multiprocessor all its rows of x, from the L2. A
  // multiprocessor takes in so many bytes a second at most.
  double Gemv() const {
    const bool few = problem_.m <= 8;
    const double rows = std::min(m_, few ? 8.0 : 16.0);
    double of_core = few ? 20e9 : 14.5e9;
    if (StreamsWeights(compute_capability_) && !HasBlockScales(problem_)) {
      of_core = few ? 34.4e9 : !fp8_ ? 24e9 : k_ <= 4096 ? 31e9 : 15e9;
    }
    const double pass = 2.2 * kUs + weight_ / std::min(0.885 * bandwidth_, cores_ * of_core) +
                        rows * k_ * 2.0 / 70e9;
    return Ceil(m_, few ? 8.0 : 16.0) * pass + (problem_.quant == QuantMode::kNone ? 0 : 2.5 * kUs);
  }

  double ColumnsOfTile() const { return m_ <= 16 ? 16 : m_ <= 32 ? 32 : m_ <= 64 ? 64 : 128; }

  // As measured on an H200: decoding adds half its instructions (FP8's all) to tensor cores at 68 %
  // of what mma.sync can. Tiles are shared where the last round of whole ones would leave much idle
  // (MmaPlan).
  double Mma() const {
    const double columns = ColumnsOfTile();
    const double outputs = columns == 128 ? 128 : 256;
    const double column_tiles = Ceil(m_, columns);
    const double output_tiles = Ceil(n_, outputs);
    const double tiles = output_tiles * column_tiles;
    const double places = Ceil(tiles, cores_) * cores_;
    const bool shared = tiles < 0.8 * places;
    const double used = shared ? 1.0 : tiles / places;
    const double multiply = 2.0 * column_tiles * columns * output_tiles * outputs * k_ /
                            (0.68 * MmaShare(compute_capability_) * flops_);
    const double decode = n_ * k_ * column_tiles / (cores_ * (fp8_ ? 36e9 : 72e9));
    return (shared ? 6.5 : 3.0) * kUs +
           std::max(weight_ / (0.85 * bandwidth_), (decode + multiply) / used);
  }

  // Decoding takes issue slots beside half of the multiplication.
  double Wgmma() const {
    const double columns = ColumnsOfTile();
    const double tiles = Ceil(n_, 256) * Ceil(m_, columns);
    const bool shared = tiles <= cores_ * 2.0 / 3.0;
    const double multiply = Flops(Ceil(m_, columns) * columns) / flops_;
    const double decode = n_ * k_ / (cores_ * 46e9);
    const bool wide = m_ > 128 && !fp8_ && problem_.input == DType::kBF16;  // 256 rows at a time
    return (shared ? 6.5 : 3.0) * kUs +
           std::max({weight_ / (0.85 * bandwidth_), decode + 0.5 * multiply,
                     multiply / (wide ? 0.9 : 0.83)});
  }

  // The same of 64 rows at most, which each decode the weight again.
  double WgmmaChain() const {
    const double columns = std::min(ColumnsOfTile(), 64.0);
    const double passes = Ceil(m_, columns);
    const double multiply = Flops(passes * columns) / flops_;
    const double decode = passes * n_ * k_ / (cores_ * 46e9);
    return 3.5 * kUs +
           std::max({weight_ / (0.85 * bandwidth_), decode + 0.5 * multiply, multiply / 0.83});
  }

  // The weight decoded, written and read again, then cuBLASLt; F16 meets it in two parts, whose
  // sums are written, read, added to and rounded.
  double Gemm() const {
    const bool dense = problem_.weight.format == Format::kDense;
    const bool split = problem_.input == DType::kF16 && !dense;
    const double decoded = 2.0 * n_ * k_;
    const double decode = dense ? 0.0 : 3.0 * kUs + (weight_ + decoded) / (0.94 * bandwidth_);
    const double moved = decoded + m_ * k_ * 2.0 + y_bytes_;
    const double once = std::max(moved / (0.88 * bandwidth_), Flops(m_) / (0.83 * flops_));
    const double sums = m_ * n_ * 4.0 * 3.0 / (0.9 * bandwidth_);
    return 2.0 * kUs + decode + (split ? 2.0 * once + sums : once);
  }

  // 8-bit products take half of the time of 16-bit ones.
  double Fp8Gemm() const {
    const double columns = ColumnsOfTile();
    return 3.5 * kUs + Quantize() +
           std::max((weight_ + m_ * k_ + y_bytes_) / (0.8 * bandwidth_),
                    Flops(Ceil(m_, columns) * columns) / (0.8 * flops_));
  }

  double Fp8Cublas() const {
    return 7.0 * kUs + Quantize() +
           std::max((weight_ + m_ * k_ + y_bytes_) / (0.83 * bandwidth_),
                    Flops(m_) / (1.45 * flops_));
  }

  double GemmF32() const {
    constexpr double kRows = 64;
    const double tiles = Ceil(m_, kRows) * Ceil(n_, kRows);
    const double used = tiles / (Ceil(tiles, cores_) * cores_);
    return 4.0 * kUs + std::max(weight_ / (0.5 * bandwidth_),
                                Flops(Ceil(m_, kRows) * kRows) / (cores_ * 150e9 * used));
  }

  const Problem& problem_;
  const double m_;
  const double n_;
  const double k_;
  const double weight_;
  const double y_bytes_;
  const bool fp8_;
  const double bandwidth_;
  const double flops_;
  const double cores_;
  const int compute_capability_;
};

bool IsNear(double value, double expected) {
  return value > 0.75 * expected && value < 1.25 * expected;
}

}  // namespace

double PredictMatmulMicroseconds(const Problem& problem, std::string_view kernel,
                                 const DeviceInfo& device) {
  if (problem.m <= 0 || !(device.peak_bandwidth_bytes_per_second > 0.0) ||
      !(device.peak_tensor_flops_per_second > 0.0)) {
    return 0.0;
  }
  return Model(problem, device).Seconds(kernel) * 1e6;
}

double KnownTensorFlops(const DeviceInfo& device) {
  // A part of one (MIG) bears its name too.
  const bool h200 = device.compute_capability == kHopper && device.cores == kMeasuredCores &&
                    device.name.find("H200") != std::string::npos;
  return h200 ? kMeasuredTensorFlops : 0.0;
}

bool IsMeasuredChip(const DeviceInfo& device) {
  // By its name whatever else it is doing while it is measured.
  if (KnownTensorFlops(device) > 0.0) return true;
  return device.compute_capability == kHopper &&
         IsNear(device.peak_bandwidth_bytes_per_second, kMeasuredBandwidth) &&
         IsNear(device.peak_tensor_flops_per_second, kMeasuredTensorFlops);
}

int64_t EndOfRowsStep(int64_t m) {
  for (const int64_t end : {8, 16, 32, 64}) {
    if (m <= end) return end;
  }
  if (m > kMostSteps) return std::numeric_limits<int64_t>::max();
  const int64_t step = m <= 1024 ? 128 : 512;
  return CeilDiv(m, step) * step;
}

int64_t RowsOfStep(int64_t m) { return m > kMostSteps ? kMostSteps : EndOfRowsStep(m); }

}  // namespace nibble::core
