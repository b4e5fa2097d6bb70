#include "server/executor/operations.h"

#include <atomic>
#include <bit>
#include <utility>

#include "nibble/status.h"

namespace nibble::server {
namespace {

int64_t RowBytes(DType dtype, int64_t cols) {
  return cols * static_cast<int64_t>(DTypeBytes(dtype));
}

// Small enumerations of a key, a byte each.
uint64_t Pack(Op op, DType input, DType output, QuantMode first, QuantMode second, bool flag) {
  const auto byte = [](auto value, int at) { return static_cast<uint64_t>(value) << (8 * at); };
  return byte(op, 0) | byte(input, 1) | byte(output, 2) | byte(first, 3) | byte(second, 4) |
         byte(flag, 5);
}

// Identity of an operation that shares its batches with no other. Weight versions count up from 1,
// so the top bit keeps the two apart.
uint64_t UniqueIdentity() {
  static std::atomic<uint64_t> next{0};
  return (uint64_t{1} << 63) | next.fetch_add(1, std::memory_order_relaxed);
}

uint64_t Bits(float first, float second = 0.0f) {
  return uint64_t{std::bit_cast<uint32_t>(first)} << 32 | std::bit_cast<uint32_t>(second);
}

void CountOn(const WeightHandle& weight, int64_t rows, double compute_us) {
  WeightCounters& counters = weight->counters();
  counters.rows.fetch_add(static_cast<uint64_t>(rows), std::memory_order_relaxed);
  counters.batches.fetch_add(1, std::memory_order_relaxed);
  counters.compute_us.fetch_add(static_cast<uint64_t>(compute_us), std::memory_order_relaxed);
}

class MatmulOperation : public Operation {
 public:
  MatmulOperation(WeightHandle weight, const MatmulOptions& options)
      : weight_(std::move(weight)), options_(options) {
    const WeightSpec& spec = weight_->weight().spec();
    input_row_bytes_ = {RowBytes(options.x, spec.k)};
    scales_per_row_ = ScalesPerRow(options.x_scales, spec.k);
    if (scales_per_row_ > 0) input_row_bytes_.push_back(RowBytes(DType::kF32, scales_per_row_));
    output_row_bytes_ = {RowBytes(options.y, spec.n)};
  }

  Problem ProblemFor(int64_t rows) const override {
    Problem problem;
    problem.op = Op::kMatmul;
    problem.weight = weight_->weight().spec();
    problem.m = rows;
    problem.input = options_.x;
    problem.output = options_.y;
    problem.quant = ActivationMode();
    return problem;
  }

  absl::Status Launch(Device& device, const Choice& choice, const LaunchArgs& args,
                      Stream& stream) const override {
    const WeightSpec& spec = weight_->weight().spec();
    MatmulArgs matmul;
    matmul.weight = &weight_->weight();
    matmul.x = MakeConstView(args.inputs[0], options_.x, args.rows, spec.k);
    matmul.activation = ActivationMode();
    if (scales_per_row_ > 0) {
      matmul.x_scales = MakeConstView(args.inputs[1], DType::kF32, args.rows, scales_per_row_);
    }
    matmul.static_scale = weight_->weight().input_scale();
    matmul.y = MakeView(args.outputs[0], options_.y, args.rows, spec.n);
    return device.Matmul(matmul, choice, args.workspace, stream);
  }

  void CountBatch(int64_t rows, double compute_us) const override {
    CountOn(weight_, rows, compute_us);
  }

 private:
  // How x is quantized, by the caller or on the device.
  QuantMode ActivationMode() const {
    return scales_per_row_ > 0 ? options_.x_scales : options_.activation;
  }

  const WeightHandle weight_;
  const MatmulOptions options_;
  int64_t scales_per_row_ = 0;
};

class DequantizeOperation : public Operation {
 public:
  DequantizeOperation(WeightHandle weight, int64_t row_begin, DType dtype)
      : weight_(std::move(weight)), row_begin_(row_begin), dtype_(dtype) {
    output_row_bytes_ = {RowBytes(dtype, weight_->weight().spec().k)};
  }

  Problem ProblemFor(int64_t rows) const override {
    Problem problem;
    problem.op = Op::kDequantize;
    problem.weight = weight_->weight().spec();
    problem.m = rows;
    problem.output = dtype_;
    return problem;
  }

  absl::Status Launch(Device& device, const Choice& choice, const LaunchArgs& args,
                      Stream& stream) const override {
    DequantizeArgs dequantize;
    dequantize.weight = &weight_->weight();
    dequantize.row_begin = row_begin_ + args.first_row;
    dequantize.out = MakeView(args.outputs[0], dtype_, args.rows, weight_->weight().spec().k);
    return device.Dequantize(dequantize, choice, args.workspace, stream);
  }

  // Each request has a row of its own to begin at.
  bool repeats() const override { return false; }

  void CountBatch(int64_t rows, double compute_us) const override {
    CountOn(weight_, rows, compute_us);
  }

 private:
  const WeightHandle weight_;
  const int64_t row_begin_;
  const DType dtype_;
};

// What norm_quant and silu_mul_quant write: y, and scales where the mode has one a row or group.
struct QuantizedOutput {
  DType y;
  int64_t d;
  int64_t scales_per_row;

  QuantizedOutput(const OutputQuant& quant, DType y_dtype, int64_t columns)
      : y(y_dtype),
        d(columns),
        scales_per_row(quant.mode == QuantMode::kStatic ? 0 : ScalesPerRow(quant.mode, columns)) {}

  std::vector<int64_t> row_bytes() const {
    std::vector<int64_t> bytes = {RowBytes(y, d)};
    if (scales_per_row > 0) bytes.push_back(RowBytes(DType::kF32, scales_per_row));
    return bytes;
  }
  MatrixView YView(const LaunchArgs& args) const {
    return MakeView(args.outputs[0], y, args.rows, d);
  }
  MatrixView ScalesView(const LaunchArgs& args) const {
    if (scales_per_row == 0) return {};
    return MakeView(args.outputs[1], DType::kF32, args.rows, scales_per_row);
  }
};

class NormQuantOperation : public Operation {
 public:
  NormQuantOperation(WeightHandle resident, std::string inline_gamma, DType gamma_dtype,
                     const NormQuantOptions& options)
      : resident_(std::move(resident)),
        inline_(std::move(inline_gamma)),
        gamma_dtype_(gamma_dtype),
        options_(options),
        output_(options.quant, options.y, options.d) {
    input_row_bytes_ = {RowBytes(options.x, options.d)};
    if (options.has_residual) input_row_bytes_.push_back(RowBytes(options.x, options.d));
    output_row_bytes_ = output_.row_bytes();
    if (options.has_residual) output_row_bytes_.push_back(RowBytes(options.x, options.d));
  }

  std::span<const std::byte> constant() const override {
    return std::as_bytes(std::span<const char>(inline_));
  }

  Problem ProblemFor(int64_t rows) const override {
    Problem problem;
    problem.op = Op::kNormQuant;
    problem.m = rows;
    problem.d = options_.d;
    problem.input = options_.x;
    problem.output = options_.y;
    problem.quant = options_.quant.mode;
    problem.has_residual = options_.has_residual;
    return problem;
  }

  absl::Status Launch(Device& device, const Choice& choice, const LaunchArgs& args,
                      Stream& stream) const override {
    NormQuantArgs norm;
    norm.x = MakeConstView(args.inputs[0], options_.x, args.rows, options_.d);
    if (options_.has_residual) {
      norm.residual = MakeConstView(args.inputs[1], options_.x, args.rows, options_.d);
      norm.residual_out = MakeView(args.outputs.back(), options_.x, args.rows, options_.d);
    }
    if (resident_ != nullptr) {
      NIBBLE_ASSIGN_OR_RETURN(norm.gamma, device.DenseView(resident_->weight()));
    } else {
      norm.gamma = MakeConstView(args.constant, gamma_dtype_, 1, options_.d);
    }
    norm.epsilon = options_.epsilon;
    norm.quant = options_.quant;
    norm.y = output_.YView(args);
    norm.scales = output_.ScalesView(args);
    return device.NormQuant(norm, choice, args.workspace, stream);
  }

  // A gamma of the request's own makes a key that does not come again.
  bool repeats() const override { return resident_ != nullptr; }

  void CountBatch(int64_t rows, double compute_us) const override {
    if (resident_ != nullptr) CountOn(resident_, rows, compute_us);
  }

 private:
  const WeightHandle resident_;
  const std::string inline_;
  const DType gamma_dtype_;
  const NormQuantOptions options_;
  const QuantizedOutput output_;
};

class SiluMulQuantOperation : public Operation {
 public:
  explicit SiluMulQuantOperation(const SiluMulQuantOptions& options)
      : options_(options), output_(options.quant, options.y, options.d) {
    input_row_bytes_ = {RowBytes(options.x, 2 * options.d)};
    output_row_bytes_ = output_.row_bytes();
  }

  Problem ProblemFor(int64_t rows) const override {
    Problem problem;
    problem.op = Op::kSiluMulQuant;
    problem.m = rows;
    problem.d = options_.d;
    problem.input = options_.x;
    problem.output = options_.y;
    problem.quant = options_.quant.mode;
    return problem;
  }

  absl::Status Launch(Device& device, const Choice& choice, const LaunchArgs& args,
                      Stream& stream) const override {
    SiluMulQuantArgs silu;
    silu.x = MakeConstView(args.inputs[0], options_.x, args.rows, 2 * options_.d);
    silu.quant = options_.quant;
    silu.y = output_.YView(args);
    silu.scales = output_.ScalesView(args);
    return device.SiluMulQuant(silu, choice, args.workspace, stream);
  }

 private:
  const SiluMulQuantOptions options_;
  const QuantizedOutput output_;
};

KeyedOperation MakeNormQuant(WeightHandle resident, std::string inline_gamma, DType gamma_dtype,
                             const NormQuantOptions& options) {
  const uint64_t identity = resident != nullptr ? resident->version() : UniqueIdentity();
  KeyedOperation made;
  made.key.parts = {identity,
                    Pack(Op::kNormQuant, options.x, options.y, options.quant.mode, QuantMode::kNone,
                         options.has_residual),
                    Bits(options.epsilon, options.quant.static_scale),
                    static_cast<uint64_t>(options.d)};
  made.operation = std::make_shared<NormQuantOperation>(
      std::move(resident), std::move(inline_gamma), gamma_dtype, options);
  return made;
}

}  // namespace

KeyedOperation MakeMatmul(WeightHandle weight, const MatmulOptions& options) {
  KeyedOperation made;
  made.key.parts = {weight->version(), Pack(Op::kMatmul, options.x, options.y, options.x_scales,
                                            options.activation, false)};
  made.operation = std::make_shared<MatmulOperation>(std::move(weight), options);
  return made;
}

KeyedOperation MakeDequantize(WeightHandle weight, int64_t row_begin, DType dtype) {
  KeyedOperation made;
  made.key.parts = {UniqueIdentity()};
  made.operation = std::make_shared<DequantizeOperation>(std::move(weight), row_begin, dtype);
  return made;
}

KeyedOperation MakeNormQuant(WeightHandle gamma, const NormQuantOptions& options) {
  const DType dtype = gamma->weight().spec().dtype;
  return MakeNormQuant(std::move(gamma), {}, dtype, options);
}

KeyedOperation MakeNormQuant(std::string gamma, DType gamma_dtype,
                             const NormQuantOptions& options) {
  return MakeNormQuant(nullptr, std::move(gamma), gamma_dtype, options);
}

KeyedOperation MakeSiluMulQuant(const SiluMulQuantOptions& options) {
  KeyedOperation made;
  made.key.parts = {
      0, Pack(Op::kSiluMulQuant, options.x, options.y, options.quant.mode, QuantMode::kNone, false),
      Bits(options.quant.static_scale), static_cast<uint64_t>(options.d)};
  made.operation = std::make_shared<SiluMulQuantOperation>(options);
  return made;
}

}  // namespace nibble::server
