// What gpu_bench measures: each op over rotated copies of its operands (cold L2), by graph medians,
// matmuls in turn with cuBLAS; answers of matmuls are checked.
#ifndef NIBBLE_TESTS_BENCH_GPU_MEASUREMENTS_H_
#define NIBBLE_TESTS_BENCH_GPU_MEASUREMENTS_H_

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "kernels/core/packed_units.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/device.h"
#include "nlohmann/json.hpp"
#include "tests/bench/gpu_operands.h"
#include "tests/bench/gpu_timing.h"

namespace nibble::bench {

// A matmul's weight and activations: BF16, quantized on the way in or not, or E4M3 codes.
struct MatmulCase {
  WeightSpec spec;
  DType input = DType::kBF16;
  QuantMode activation = QuantMode::kNone;
};

class Bench {
 public:
  // `blas` may split K as it likes; bandwidths in bytes a second. Matmuls run on each of `kernels`
  // that can, or on the selected one where there are none.
  Bench(Device& device, Stream& stream, cuda::Blas& blas, double copy_bytes_per_s,
        std::vector<std::string_view> kernels)
      : device_(device),
        stream_(stream),
        handle_(static_cast<cuda::CudaStream&>(stream).handle()),
        blas_(blas),
        operands_(device, stream),
        read_bytes_per_s_(device.info().peak_bandwidth_bytes_per_second),
        copy_bytes_per_s_(copy_bytes_per_s),
        kernels_(std::move(kernels)) {}

  const nlohmann::json& rows() const { return rows_; }
  // The last wrong answer; no time is reported of those.
  const Status& wrong() const { return wrong_; }

  Status Matmuls(const std::vector<MatmulCase>& cases, const std::vector<int64_t>& ms) {
    const WeightSpec& first = cases.front().spec;
    NIBBLE_ASSIGN_OR_RETURN(const Dense dense, operands_.UploadDense(first.n, first.k, ms.back()));
    const std::vector<std::string_view> kernels =
        kernels_.empty() ? std::vector<std::string_view>{""} : kernels_;
    for (const MatmulCase& one : cases) {
      NIBBLE_ASSIGN_OR_RETURN(const Weights weights, operands_.Upload(one.spec));
      for (const std::string_view kernel : kernels) {
        NIBBLE_RETURN_IF_ERROR(MatmulsOf(one, weights, ms, dense, kernel));
      }
    }
    return absl::OkStatus();
  }

  Status Dequantize(const WeightSpec& spec) {
    NIBBLE_ASSIGN_OR_RETURN(const Weights weights, operands_.Upload(spec));
    NIBBLE_ASSIGN_OR_RETURN(const auto out, operands_.Zeros(spec.n * spec.k * 2));
    Problem problem;
    problem.op = Op::kDequantize;
    problem.weight = spec;
    problem.m = spec.n;
    const Choice choice = Select(problem, device_.info());
    const MatrixView view = MakeView(out->data(), DType::kBF16, spec.n, spec.k);
    NIBBLE_ASSIGN_OR_RETURN(
        const double us, TimeByGraph(handle_, Launches(weights.size()), [&](int i) {
          return device_.Dequantize({weights[i % weights.size()].get(), 0, view}, choice, nullptr,
                                    stream_);
        }));
    const double bytes = static_cast<double>(weights.front()->bytes() + out->size());
    Report("dequantize", spec, spec.n, choice, us, 0.0, bytes, 0.0, true);
    return absl::OkStatus();
  }

  // With a residual, to E4M3 per token; silu without the residual.
  Status RowOp(Op op, int64_t m, int64_t d) {
    const bool norm = op == Op::kNormQuant;
    const int64_t x_cols = norm ? d : 2 * d;
    const auto bytes_of_set = static_cast<uint64_t>(m * (norm ? 2 * d : x_cols) * 2 + m * d);
    const uint64_t sets = std::clamp<uint64_t>(kColdBytes / bytes_of_set + 1, 1, 64);
    std::vector<std::unique_ptr<Buffer>> x, residual, y;
    for (uint64_t set = 0; set < sets; ++set) {
      NIBBLE_ASSIGN_OR_RETURN(x.emplace_back(), operands_.Activations(m * x_cols));
      NIBBLE_ASSIGN_OR_RETURN(residual.emplace_back(), operands_.Activations(norm ? m * d : 1));
      NIBBLE_ASSIGN_OR_RETURN(y.emplace_back(), operands_.Zeros(m * d));
    }
    NIBBLE_ASSIGN_OR_RETURN(const auto gamma, operands_.Activations(d));
    NIBBLE_ASSIGN_OR_RETURN(const auto scales, operands_.Zeros(m * 4));
    Problem problem;
    problem.op = op;
    problem.m = m;
    problem.d = d;
    problem.quant = QuantMode::kPerToken;
    problem.output = DType::kF8E4M3;
    problem.has_residual = norm;
    const Choice choice = Select(problem, device_.info());
    const MatrixView scale_view = MakeView(scales->data(), DType::kF32, m, 1);
    NIBBLE_ASSIGN_OR_RETURN(
        const double us, TimeByGraph(handle_, Launches(sets), [&](int i) {
          const auto set = static_cast<size_t>(i) % x.size();
          const ConstMatrixView in = MakeConstView(x[set]->data(), DType::kBF16, m, x_cols);
          const MatrixView out = MakeView(y[set]->data(), DType::kF8E4M3, m, d);
          if (!norm) {
            return device_.SiluMulQuant({in, {QuantMode::kPerToken}, out, scale_view}, choice,
                                        nullptr, stream_);
          }
          NormQuantArgs args;
          args.x = in;
          args.residual = MakeConstView(residual[set]->data(), DType::kBF16, m, d);
          args.residual_out = MakeView(residual[set]->data(), DType::kBF16, m, d);
          args.gamma = MakeConstView(gamma->data(), DType::kBF16, 1, d);
          args.quant = {QuantMode::kPerToken};
          args.y = out;
          args.scales = scale_view;
          return device_.NormQuant(args, choice, nullptr, stream_);
        }));
    const Traffic traffic = TrafficOf(problem);
    WeightSpec spec;
    spec.n = d;
    spec.k = d;
    Report(OpName(op), spec, m, choice, us, 0.0,
           static_cast<double>(traffic.read_bytes + traffic.written_bytes), 0.0, true);
    return absl::OkStatus();
  }

 private:
  static constexpr double kTensorFlops = 790e12;  // of 16 bits; of 8 bits twice as many
  static constexpr int kMinLaunches = 40;

  // Whole rounds over the copies, more of them where a launch is short.
  static int Launches(uint64_t copies, int64_t m = 1) {
    const uint64_t rounds = m >= 256 ? 1 : kMinLaunches / copies + 1;
    return static_cast<int>(rounds * copies);
  }

  GraphOf DenseGraph(const Dense& dense, int64_t m, int launches) {
    const cuda::BlasProblem problem{DType::kBF16, DType::kBF16, m,       dense.n, dense.k,
                                    dense.k,      dense.k,      dense.n, false};
    return {launches, [this, problem, &dense](int i) {
              return blas_.Run(problem, dense.x->data(),
                               dense.weights[i % dense.weights.size()]->data(), dense.y->data(),
                               dense.workspace->data(), handle_);
            }};
  }

  // Runs one matmul with `choice` and returns y in binary32.
  StatusOr<std::vector<float>> Run(const MatmulArgs& args, const Problem& problem,
                                   const Choice& choice) {
    NIBBLE_ASSIGN_OR_RETURN(const auto workspace,
                            operands_.Zeros(device_.WorkspaceBytes(problem, choice)));
    NIBBLE_ASSIGN_OR_RETURN(const auto y, operands_.Zeros(args.y.rows * args.y.cols * 4));
    NIBBLE_RETURN_IF_ERROR(
        CheckCuda(cudaMemsetAsync(y->data(), 0xFF, y->size(), handle_), "cudaMemsetAsync"));
    MatmulArgs to_y = args;
    to_y.y = MakeView(y->data(), DType::kF32, args.y.rows, args.y.cols);
    NIBBLE_RETURN_IF_ERROR(device_.Matmul(to_y, choice, workspace->data(), stream_));
    return operands_.Download(*y, DType::kF32, args.y.rows * args.y.cols);
  }

  // In norm.
  static double RelativeError(const std::vector<float>& received,
                              const std::vector<float>& expected) {
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(double{received[i]} - double{expected[i]}, 2);
      norm += std::pow(double{expected[i]}, 2);
    }
    return std::sqrt(difference / norm);
  }

  // Whether an answer is right; if not, it is printed and the run will end with an error.
  bool Check(const MatmulArgs& args, const Choice& choice, const std::vector<float>& received,
             const std::vector<float>& expected, std::string_view what) {
    // Rounding weights to BF16 errs by 2^-9 each; the sum of many by less.
    constexpr double kMaxError = 4e-3;
    const double error = RelativeError(received, expected);
    if (error <= kMaxError) return true;
    wrong_ = absl::InternalError(fmt::format("{} M={} {}: {}: relative error {:.3g}, at most {}",
                                             ToString(args.weight->spec()), args.x.rows,
                                             choice.kernel, what, error, kMaxError));
    fmt::print("WRONG {}\n", MessageOf(wrong_));
    std::fflush(stdout);
    return false;
  }

  Status MatmulsOf(const MatmulCase& one, const Weights& weights, const std::vector<int64_t>& ms,
                   const Dense& dense, std::string_view kernel) {
    const WeightSpec& spec = one.spec;
    const bool codes = one.input == DType::kF8E4M3;
    const int64_t steps = ScalesPerRow(one.activation, spec.k);
    NIBBLE_ASSIGN_OR_RETURN(const auto x, codes ? operands_.Codes(ms.back() * spec.k)
                                                : operands_.Activations(ms.back() * spec.k));
    NIBBLE_ASSIGN_OR_RETURN(const auto scales,
                            operands_.Scales(ms.back() * std::max<int64_t>(1, steps)));
    std::vector<float> first_row;
    for (const int64_t m : ms) {
      Problem problem;
      problem.weight = spec;
      problem.m = m;
      problem.input = one.input;
      problem.quant = one.activation;
      Choice choice = Select(problem, device_.info());
      if (!kernel.empty()) {
        choice.kernel = kernel;
        const int capability = device_.info().compute_capability;
        if (!core::CudaKernelFits(problem, kernel, capability)) continue;
      }
      NIBBLE_ASSIGN_OR_RETURN(const auto y, operands_.Zeros(m * spec.n * 2));
      NIBBLE_ASSIGN_OR_RETURN(const auto workspace,
                              operands_.Zeros(device_.WorkspaceBytes(problem, choice)));
      MatmulArgs args;
      args.weight = weights.front().get();
      args.x = MakeConstView(x->data(), one.input, m, spec.k);
      args.activation = one.activation;
      if (codes) args.x_scales = MakeConstView(scales->data(), DType::kF32, m, steps);
      args.y = MakeView(y->data(), DType::kBF16, m, spec.n);
      std::vector<float> answer;
      if (m <= 512) {
        const Choice exact{"cuda_gemm_f32", 64, 64, 32, 1};
        NIBBLE_ASSIGN_OR_RETURN(answer, Run(args, problem, choice));
        NIBBLE_ASSIGN_OR_RETURN(const auto expected, Run(args, problem, exact));
        if (!Check(args, choice, answer, expected, "binary32 output")) continue;
      }
      const int launches = Launches(weights.size(), m);
      const GraphOf matmuls = {launches, [&](int i) {
                                 args.weight = weights[i % weights.size()].get();
                                 return device_.Matmul(args, choice, workspace->data(), stream_);
                               }};
      NIBBLE_ASSIGN_OR_RETURN(const std::vector<double> us,
                              TimeByTurns(handle_, {matmuls, DenseGraph(dense, m, launches)}));
      // All copies of the weight are the same.
      NIBBLE_ASSIGN_OR_RETURN(
          auto row, operands_.Download(*y, DType::kBF16, answer.empty() ? spec.n : m * spec.n));
      if (!answer.empty() && !Check(args, choice, row, answer, "BF16 output of a replay")) continue;
      row.resize(static_cast<size_t>(spec.n));
      if (first_row.empty()) first_row = row;
      const double bytes =
          static_cast<double>(weights.front()->bytes()) + 2.0 * m * (spec.k + spec.n);
      const double flops = 2.0 * m * spec.n * spec.k;
      const bool eight_bits = one.activation != QuantMode::kNone;
      Report("matmul", spec, m, choice, us.front(), us.back(), bytes,
             eight_bits ? flops / 2 : flops, row == first_row, ActivationName(one));
    }
    return absl::OkStatus();
  }

  // "codes per_token", "bf16 per_group"; empty for activations that are used as they are.
  static std::string ActivationName(const MatmulCase& one) {
    if (one.activation == QuantMode::kNone) return "";
    return fmt::format("{} {}", one.input == DType::kF8E4M3 ? "codes" : "bf16",
                       QuantModeName(one.activation));
  }

  // As VariantName; a matmul of FP8 without blocks by its operands: w8a16 or w8a8.
  static std::string VariantOf(std::string_view op, const WeightSpec& spec,
                               const std::string& activations) {
    const bool blocks = spec.scale_layout == ScaleLayout::kBlock;
    if (spec.format == Format::kInt4 && spec.group_size != 128) {
      return fmt::format("{}-g{}", VariantName(spec), spec.group_size);
    }
    if (op != "matmul" || spec.format != Format::kFP8 || blocks) return VariantName(spec);
    return activations.empty() ? "w8a16" : "w8a8";
  }

  void Report(std::string_view op, const WeightSpec& spec, int64_t m, const Choice& choice,
              double us, double cublas_us, double bytes, double flops, bool invariant,
              const std::string& activations = "") {
    const bool weight = op == "matmul" || op == "dequantize";
    const double bytes_per_s = op == "matmul" ? read_bytes_per_s_ : copy_bytes_per_s_;
    const double limit_us = std::max(bytes / bytes_per_s, flops / kTensorFlops) * 1e6;
    nlohmann::json row = {{"op", op},
                          {"format", weight ? FormatName(spec.format) : ""},
                          {"variant", weight ? VariantOf(op, spec, activations) : ""},
                          {"activations", activations},
                          {"n", spec.n},
                          {"k", spec.k},
                          {"m", m},
                          {"kernel", choice.kernel},
                          {"us", us},
                          {"share_of_limit", limit_us / us},
                          {"batch_invariant", invariant}};
    if (cublas_us > 0.0) {
      row["us_cublas_bf16"] = cublas_us;
      row["ratio_cublas_bf16"] = cublas_us / us;
    }
    fmt::print(
        "{:14} {:5} {:8} {:14} {:6}x{:<6} M={:<5} {:20} {:9.2f} us {:7.0f} GB/s {:5.1f} %  {}\n",
        op, row["format"].get<std::string>(), row["variant"].get<std::string>(), activations,
        spec.n, spec.k, m, choice.kernel, us, bytes / us * 1e-3, 100.0 * limit_us / us,
        cublas_us > 0.0 ? fmt::format("cuBLAS {:.2f} us, {:.2f}x{}", cublas_us, cublas_us / us,
                                      invariant ? "" : " (M shows)")
                        : "");
    std::fflush(stdout);
    rows_.push_back(std::move(row));
  }

  Device& device_;
  Stream& stream_;
  cudaStream_t handle_;
  cuda::Blas& blas_;
  Operands operands_;
  double read_bytes_per_s_;
  double copy_bytes_per_s_;
  std::vector<std::string_view> kernels_;
  Status wrong_;
  nlohmann::json rows_ = nlohmann::json::array();
};

}  // namespace nibble::bench

#endif  // NIBBLE_TESTS_BENCH_GPU_MEASUREMENTS_H_
