#include "kernels/cuda/matmul.h"

#include <algorithm>

#include "kernels/core/packed_units.h"
#include "kernels/cuda/fp8_matmul.h"
#include "kernels/cuda/launch/activations.h"
#include "kernels/cuda/launch/dequantize.h"
#include "kernels/cuda/launch/fp8_gemm.h"
#include "kernels/cuda/launch/gemm_f32.h"
#include "kernels/cuda/launch/gemv.h"
#include "kernels/cuda/matmul_plans.h"

namespace nibble::cuda {
namespace {

static_assert(static_cast<int>(Element::kI8) == static_cast<int>(DType::kI8));
static_assert(static_cast<int>(Element::kBF16) == static_cast<int>(DType::kBF16));
static_assert(static_cast<int>(Quant::kPerGroup) == static_cast<int>(QuantMode::kPerGroup));
static_assert(static_cast<int>(Quant::kStatic) == static_cast<int>(QuantMode::kStatic));

// One call's arguments beside its plan.
class Matmul {
 public:
  Matmul(const MatmulArgs& args, const CudaWeight& weight, char* workspace,
         const DeviceInfo& device, Context& context, Blas& blas, cudaStream_t stream)
      : args_(args),
        spec_(weight.spec()),
        view_(weight.view()),
        workspace_(workspace),
        device_(device),
        context_(context),
        blas_(blas),
        stream_(stream) {
    shape_ = ShapeOf(spec_, args.x.rows, args.x.dtype, args.activation);
    x_.x = args.x.data;
    x_.x_type = static_cast<Element>(args.x.dtype);
    x_.x_stride = args.x.row_stride;
    x_.x_scales = static_cast<const float*>(args.x_scales.data);
    x_.x_scales_stride = args.x_scales.row_stride;
    x_.quant = static_cast<Quant>(args.activation);
    x_.static_scale = args.static_scale;
    x_.order = view_.column_order;
    x_.m = args.x.rows;
    x_.k = static_cast<int32_t>(spec_.k);
  }

  Status RunF32() {
    const F32Plan plan(shape_);
    const auto* x = static_cast<const float*>(args_.x.data);
    int64_t stride = args_.x.row_stride;
    if (plan.widen) {
      auto* widened = reinterpret_cast<float*>(workspace_ + plan.x_offset);
      NIBBLE_RETURN_IF_ERROR(Check(LaunchWidenActivations(x_, widened, stream_)));
      x = widened;
      stride = spec_.k;
    }
    return Check(LaunchGemmF32(view_, x, stride, shape_.m, args_.y.data, YType(),
                               args_.y.row_stride, stream_));
  }

  // At most `most_rows` of x a launch; in one chain: cuda_gemv_chain.
  Status RunGemv(int64_t most_rows, bool chain) {
    const int64_t rows = std::clamp<int64_t>(most_rows, 1, kGemvRows);
    const GemvPlan plan(shape_);
    GemvArgs gemv;
    if (shape_.activation != QuantMode::kNone) {
      NIBBLE_RETURN_IF_ERROR(DecodeCodes(plan, gemv));
    } else {
      NIBBLE_RETURN_IF_ERROR(WholeUnits(x_, plan, gemv));
    }
    gemv.y_type = YType();
    gemv.y_stride = args_.y.row_stride;
    GemvLaunch launch;
    launch.scales_per_unit = core::ScalesPerUnit(spec_);
    launch.f16 = args_.x.dtype == DType::kF16 && shape_.activation == QuantMode::kNone;
    launch.ring = core::StreamsWeights(device_.compute_capability);
    launch.multiprocessors = device_.cores;
    if (core::HasChainKernels(spec_, device_.compute_capability)) {
      launch.chains = shape_.chains.count;
      launch.of_half = shape_.chains.of_half;
    }
    const auto* x = static_cast<const char*>(gemv.x);
    const float* x_scales = gemv.x_scales;
    for (int64_t row = 0; row < shape_.m; row += rows) {
      gemv.x = x + row * gemv.x_stride * 2;
      if (x_scales != nullptr) gemv.x_scales = x_scales + row * gemv.x_scales_stride;
      gemv.y = static_cast<char*>(args_.y.data) + row * args_.y.row_stride_bytes();
      gemv.m = static_cast<int32_t>(std::min(rows, shape_.m - row));
      NIBBLE_RETURN_IF_ERROR(Check(
          chain
              ? ByCodes(LaunchGemvChainInt4, LaunchGemvChainTable, LaunchGemvChainFp8, gemv, launch)
              : ByCodes(LaunchGemvInt4, LaunchGemvTable, LaunchGemvFp8, gemv, launch)));
    }
    return absl::OkStatus();
  }

  Status RunMma() {
    const MmaWorkspace places(shape_, device_);
    auto launch = TilesLaunch<MmaLaunch>(places);
    NIBBLE_RETURN_IF_ERROR(WholeUnits(x_, places, launch));
    return Check(ByCodes(LaunchMmaInt4, LaunchMmaTable, LaunchMmaFp8, places.plan, launch));
  }

  Status RunWgmma(std::string_view kernel) {
    const int64_t rows = WgmmaWorkspace::RowsOf(shape_, kernel).m;
    for (int64_t row = 0; row < shape_.m; row += rows) {
      NIBBLE_RETURN_IF_ERROR(RunWgmmaRows(kernel, row, std::min(rows, shape_.m - row)));
    }
    return absl::OkStatus();
  }

  Status RunGemm() {
    const GemmPlan plan(shape_);
    const DType input = shape_.dense ? spec_.dtype : DType::kBF16;
    const auto k_padded = static_cast<int32_t>(plan.k_padded);
    const char* x = static_cast<const char*>(args_.x.data);
    int64_t x_stride = args_.x.row_stride;
    char* copy = workspace_ + plan.x_offset;
    char* low = workspace_ + plan.low_offset;
    if (plan.split) {
      NIBBLE_RETURN_IF_ERROR(Check(LaunchSplitActivations(x_, copy, low, k_padded, stream_)));
    } else if (plan.k_padded != spec_.k || x_.order != nullptr ||
               !IsAligned(x, args_.x.row_stride_bytes())) {
      NIBBLE_RETURN_IF_ERROR(Check(LaunchPadActivations(x_, copy, k_padded, stream_)));
    } else {
      copy = nullptr;
    }
    if (copy != nullptr) {
      x = copy;
      x_stride = plan.k_padded;
    }
    // Without a bias sums can be rounded where they are made. An FP8 weight's marks of NaN are not
    // needed: its decoded weights have them.
    const bool direct = !spec_.has_bias && !plan.split &&
                        (args_.y.dtype == DType::kF32 || args_.y.dtype == input) &&
                        IsAligned(args_.y.data, args_.y.row_stride_bytes());
    BlasProblem problem;
    problem.input = input;
    problem.output = direct ? args_.y.dtype : DType::kF32;
    problem.m = shape_.m;
    problem.k = plan.k_padded;
    problem.x_stride = x_stride;
    problem.w_stride = plan.k_padded;
    problem.y_stride = direct ? args_.y.row_stride : plan.chunk;
    for (int64_t begin = 0; begin < spec_.n; begin += plan.chunk) {
      problem.n = std::min(plan.chunk, spec_.n - begin);
      problem.accumulate = false;
      const char* w = static_cast<const char*>(view_.codes) + begin * spec_.k * 2;
      if (plan.decode) {
        char* decoded = workspace_ + plan.w_offset;
        NIBBLE_RETURN_IF_ERROR(Check(LaunchDequantize(
            view_, static_cast<int32_t>(begin), static_cast<int32_t>(problem.n), decoded,
            static_cast<Element>(input), plan.k_padded, k_padded, stream_)));
        w = decoded;
      }
      char* y = static_cast<char*>(args_.y.data) +
                begin * static_cast<int64_t>(DTypeBytes(args_.y.dtype));
      void* to = direct ? y : workspace_ + plan.sums_offset;
      void* scratch = workspace_ + plan.blas_offset;
      NIBBLE_RETURN_IF_ERROR(blas_.Run(problem, x, w, to, scratch, stream_));
      if (plan.split) {
        problem.accumulate = true;
        NIBBLE_RETURN_IF_ERROR(blas_.Run(problem, low, w, to, scratch, stream_));
      }
      if (direct) continue;
      const float* bias = spec_.has_bias ? view_.bias + begin : nullptr;
      NIBBLE_RETURN_IF_ERROR(Check(LaunchBiasAndRound(
          static_cast<const float*>(to), plan.chunk, bias, shape_.m,
          static_cast<int32_t>(problem.n), y, YType(), args_.y.row_stride, stream_)));
    }
    return absl::OkStatus();
  }

 private:
  Status Check(cudaError_t error) { return context_.Check(error, "a matmul"); }

  // Rows of x from `row` on.
  Status RunWgmmaRows(std::string_view kernel, int64_t row, int64_t rows) {
    MatmulShape shape = shape_;
    shape.m = rows;
    const WgmmaWorkspace places(shape, device_, kernel);
    auto launch = TilesLaunch<WgmmaLaunch>(places);
    launch.m = rows;
    launch.y = static_cast<char*>(args_.y.data) + row * args_.y.row_stride_bytes();
    ActivationArgs x = x_;
    x.x = static_cast<const char*>(x_.x) + row * args_.x.row_stride_bytes();
    x.m = rows;
    if (TakesArranged(view_, places.plan, launch)) {
      char* copy = workspace_ + places.x_offset;
      launch.x = copy;
      launch.x_stride = places.k_padded;
      NIBBLE_RETURN_IF_ERROR(
          Check(LaunchArrangeActivations(x, copy, static_cast<int32_t>(places.k_padded),
                                         view_.codes_kind == Codes::kFP8, stream_)));
    } else {
      NIBBLE_RETURN_IF_ERROR(WholeUnits(x, places, launch));
      if (rows == 1) launch.x_stride = places.k_padded;  // one row may have any stride
    }
    return Check(ByCodes(LaunchWgmmaInt4, LaunchWgmmaTable, LaunchWgmmaFp8, places.plan, launch));
  }

  // 16-bit x as the kernels read it: whole units, in the weight's order, rows at multiples of 16
  // bytes. Where it does not lie so, a copy does.
  template <class Places, class To>
  Status WholeUnits(const ActivationArgs& x, const Places& places, To& to) {
    to.x = x.x;
    to.x_stride = x.x_stride;
    const bool apart = x.x_stride > 0 || x.m == 1;  // a tensor map wants it so
    if (apart && spec_.k % kUnitInputs == 0 && x.order == nullptr &&
        IsAligned(x.x, args_.x.row_stride_bytes())) {
      return absl::OkStatus();
    }
    char* copy = workspace_ + places.x_offset;
    to.x = copy;
    to.x_stride = places.k_padded;
    return Check(LaunchPadActivations(x, copy, static_cast<int32_t>(places.k_padded), stream_));
  }

  // E4M3 activations of one scale a row as BF16 numbers, which they all are; the scales are applied
  // to sums.
  Status DecodeCodes(const GemvPlan& plan, GemvArgs& gemv) {
    Fp8Rows rows;
    rows.codes = workspace_ + plan.x_offset;
    rows.stride = static_cast<int32_t>(plan.k_padded);
    rows.scales = reinterpret_cast<float*>(workspace_ + plan.scales_offset);
    rows.places = {shape_.m, shape_.m, 1};
    const bool codes = args_.x.dtype == DType::kF8E4M3;
    gemv.x = rows.codes;
    gemv.x_stride = plan.k_padded;
    gemv.x_scales = codes ? x_.x_scales : rows.scales;
    gemv.x_scales_stride = codes ? x_.x_scales_stride : 1;
    return Check(codes ? LaunchFp8CopyCodes(x_, rows, true, stream_)
                       : LaunchFp8Quantize(x_, rows, true, stream_));
  }
  Element YType() const { return static_cast<Element>(args_.y.dtype); }

  // What kernels take whose blocks may share tiles, but for x.
  template <class Launch, class Places>
  Launch TilesLaunch(const Places& places) const {
    Launch launch;
    launch.m = shape_.m;
    launch.y = args_.y.data;
    launch.y_type = YType();
    launch.y_stride = args_.y.row_stride;
    launch.shares = reinterpret_cast<float*>(workspace_ + places.shares_offset);
    launch.scales_per_unit = core::ScalesPerUnit(spec_);
    launch.f16 = args_.x.dtype == DType::kF16;
    return launch;
  }

  // Calls the launcher of the weight's codes.
  template <class Launcher, class... Args>
  cudaError_t ByCodes(Launcher* int4, Launcher* table, Launcher* fp8, const Args&... args) const {
    switch (view_.codes_kind) {
      case Codes::kInt4:
        return int4(view_, args..., stream_);
      case Codes::kTable:
        return table(view_, args..., stream_);
      case Codes::kFP8:
        return fp8(view_, args..., stream_);
      case Codes::kDense:
        break;
    }
    return cudaErrorInvalidValue;
  }

  const MatmulArgs& args_;
  const WeightSpec& spec_;
  const WeightView& view_;
  char* workspace_;
  const DeviceInfo& device_;
  Context& context_;
  Blas& blas_;
  cudaStream_t stream_;
  MatmulShape shape_;
  ActivationArgs x_;
};

bool IsWgmma(const Choice& choice) { return choice.kernel.starts_with("cuda_wgmma"); }

}  // namespace

uint64_t MatmulWorkspaceBytes(const Problem& problem, const Choice& choice,
                              const DeviceInfo& device) {
  if (IsFp8Kernel(choice)) return Fp8MatmulWorkspaceBytes(problem, choice, device);
  const MatmulShape shape = ShapeOf(problem.weight, problem.m, problem.input, problem.quant);
  const bool gemv = choice.kernel == "cuda_gemv" || choice.kernel == "cuda_gemv_chain";
  const bool mma = choice.kernel == "cuda_mma";
  const bool wgmma = IsWgmma(choice);
  // Uneven groups leave these to cuBLASLt, which shows in the weight alone.
  const bool units = gemv || mma || wgmma;
  const bool gemm = choice.kernel == "cuda_gemm" || (units && shape.reorder);
  return std::max(
      {gemv ? GemvPlan(shape).workspace.total() : 0,
       mma ? MmaWorkspace(shape, device).workspace.total() : 0,
       wgmma ? WgmmaWorkspace(WgmmaWorkspace::RowsOf(shape, choice.kernel), device, choice.kernel)
                   .workspace.total()
             : 0,
       gemm ? GemmPlan(shape).workspace.total() : 0,
       units || gemm ? 0 : F32Plan(shape).workspace.total()});
}

Status RunMatmul(const MatmulArgs& args, const CudaWeight& weight, const Choice& choice,
                 void* workspace, const DeviceInfo& device, Context& context, Blas& blas,
                 cudaStream_t stream) {
  if (IsFp8Kernel(choice)) {
    return RunFp8Matmul(args, weight, choice, workspace, device, context, blas, stream);
  }
  Matmul matmul(args, weight, static_cast<char*>(workspace), device, context, blas, stream);
  const bool uneven_groups = weight.view().group_index != nullptr;
  if (choice.kernel == "cuda_gemv" && !uneven_groups) return matmul.RunGemv(choice.tile_m, false);
  if (choice.kernel == "cuda_gemv_chain") return matmul.RunGemv(choice.tile_m, true);
  if (choice.kernel == "cuda_mma" && !uneven_groups) return matmul.RunMma();
  if (IsWgmma(choice) && !uneven_groups) return matmul.RunWgmma(choice.kernel);
  if (choice.kernel != "cuda_gemm_f32") return matmul.RunGemm();
  return matmul.RunF32();
}

}  // namespace nibble::cuda
