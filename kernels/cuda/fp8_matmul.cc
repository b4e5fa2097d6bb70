#include "kernels/cuda/fp8_matmul.h"

#include <algorithm>

#include "kernels/cuda/launch/fp8_gemm.h"
#include "kernels/cuda/workspace.h"

namespace nibble::cuda {
namespace {

constexpr int64_t kCodesAlign = 16;
// What cuBLASLt asks of rows with scales of blocks.
constexpr int64_t kBlockRowsAlign = 4;
// Of a part of the rows, about; little where only few rows or unaligned ones ask for them.
constexpr int64_t kSumsBytes = int64_t{128} << 20;
constexpr int64_t kFewSumsBytes = int64_t{16} << 20;
constexpr uint64_t kBlasBytes = uint64_t{32} << 20;

bool IsCublas(const Choice& choice) { return choice.kernel == "cuda_fp8_cublas"; }

// Whether a scale of either side changes along K.
bool HasBlocks(const WeightSpec& spec, QuantMode activation) {
  return activation == QuantMode::kPerGroup ||
         (spec.scale_layout == ScaleLayout::kBlock && spec.scale_block_k < spec.k);
}

struct Plan {
  Plan(const WeightSpec& spec, int64_t m, QuantMode activation, bool cublas, int multiprocessors)
      : blocks(HasBlocks(spec, activation)), k_padded(RoundUp(spec.k, kCodesAlign)) {
    const int64_t m_padded = RoundUp(m, kBlockRowsAlign);
    const bool rounds_apart = spec.has_bias || (blocks && m != m_padded);
    const int64_t sums_bytes = rounds_apart ? kSumsBytes : kFewSumsBytes;
    sums_rows = std::max(kFp8RowUnit, sums_bytes / 4 / spec.n / kFp8RowUnit * kFp8RowUnit);
    sums_rows = std::min(sums_rows, m_padded);
    // Scales of blocks lie as the rows are multiplied.
    chunk = cublas && blocks && rounds_apart ? sums_rows : m_padded;
    steps = blocks ? CeilDiv(spec.k, kUnitInputs) : 1;
    codes_offset = workspace.Place(m_padded, k_padded);
    // Tiles of our kernel read scales of whole tiles.
    scales_offset = workspace.Place(m_padded * steps + kFp8RowUnit, int64_t{sizeof(float)});
    partials_offset = workspace.Place(1, Fp8GemmPartialBytes(m, multiprocessors));
    if (!cublas) return;
    blas_offset = workspace.Place(1, kBlasBytes);
    sums_offset = workspace.Place(sums_rows, spec.n * int64_t{sizeof(float)});
  }
  Workspace workspace;
  bool blocks;
  int64_t k_padded;       // bytes of a row of codes
  int64_t chunk = 0;      // rows at a time
  int64_t sums_rows = 0;  // rows whose sums lie in memory at a time
  int64_t steps = 1;      // scales of a row of x
  uint64_t codes_offset = 0;
  uint64_t scales_offset = 0;
  uint64_t partials_offset = 0;
  uint64_t blas_offset = 0;
  uint64_t sums_offset = 0;
};

// One call's arguments beside its plan.
class Fp8Matmul {
 public:
  Fp8Matmul(const MatmulArgs& args, const CudaWeight& weight, bool cublas, char* workspace,
            const DeviceInfo& device, Context& context, Blas& blas, cudaStream_t stream)
      : args_(args),
        spec_(weight.spec()),
        view_(weight.view()),
        cublas_(cublas),
        multiprocessors_(device.cores),
        plan_(spec_, args.x.rows, args.activation, cublas, device.cores),
        workspace_(workspace),
        context_(context),
        blas_(blas),
        stream_(stream) {}

  Status Run() {
    NIBBLE_RETURN_IF_ERROR(PrepareActivations());
    const auto y_bytes = static_cast<int64_t>(DTypeBytes(args_.y.dtype));
    for (int64_t begin = 0; begin < args_.x.rows; begin += plan_.chunk) {
      Rows rows;
      rows.m = std::min(plan_.chunk, args_.x.rows - begin);
      rows.codes = codes_ + begin * codes_stride_;
      rows.scales = scales_ + begin * (plan_.blocks ? plan_.steps : scales_stride_);
      rows.y = static_cast<char*>(args_.y.data) + begin * args_.y.row_stride * y_bytes;
      NIBBLE_RETURN_IF_ERROR(RunRows(rows));
    }
    return absl::OkStatus();
  }

 private:
  // A chunk of rows.
  struct Rows {
    int64_t m = 0;
    const char* codes = nullptr;
    const float* scales = nullptr;
    char* y = nullptr;
  };

  Status Check(cudaError_t error) { return context_.Check(error, "an FP8 matmul"); }
  float* Sums() const { return reinterpret_cast<float*>(workspace_ + plan_.sums_offset); }
  int64_t PaddedRows(const Rows& rows) const { return RoundUp(rows.m, kBlockRowsAlign); }

  // codes_ and scales_: as they are given where the kernels take them so, else in the workspace.
  Status PrepareActivations() {
    ActivationArgs x;
    x.x = args_.x.data;
    x.x_type = static_cast<Element>(args_.x.dtype);
    x.x_stride = args_.x.row_stride;
    x.x_scales = static_cast<const float*>(args_.x_scales.data);
    x.x_scales_stride = args_.x_scales.row_stride;
    x.quant = static_cast<Quant>(args_.activation);
    x.static_scale = args_.static_scale;
    x.m = args_.x.rows;
    x.k = static_cast<int32_t>(spec_.k);
    Fp8Rows to;
    to.codes = workspace_ + plan_.codes_offset;
    to.stride = static_cast<int32_t>(plan_.k_padded);
    to.scales = reinterpret_cast<float*>(workspace_ + plan_.scales_offset);
    to.places = {RoundUp(x.m, kBlockRowsAlign), plan_.chunk, static_cast<int32_t>(plan_.steps)};
    codes_ = static_cast<const char*>(to.codes);
    codes_stride_ = plan_.k_padded;
    scales_ = to.scales;
    if (args_.x.dtype != DType::kF8E4M3) {
      return Check(LaunchFp8Quantize(x, to, false, stream_));
    }
    // Blocks are multiplied in whole fours of rows.
    const bool whole = !cublas_ || !plan_.blocks || x.m % kBlockRowsAlign == 0;
    if (whole && spec_.k == plan_.k_padded && IsAligned(args_.x.data, args_.x.row_stride)) {
      codes_ = static_cast<const char*>(args_.x.data);
      codes_stride_ = x.m == 1 ? plan_.k_padded : args_.x.row_stride;
    } else {
      NIBBLE_RETURN_IF_ERROR(Check(LaunchFp8CopyCodes(x, to, false, stream_)));
    }
    if (plan_.blocks) return Check(LaunchFp8CopyScales(x, to, stream_));
    scales_ = x.x_scales;
    scales_stride_ = x.x_scales_stride;
    return absl::OkStatus();
  }

  Status RunRows(const Rows& rows) {
    if (!cublas_) return RunGemm(rows);
    if (plan_.blocks) return RunBlocks(rows);
    NIBBLE_ASSIGN_OR_RETURN(const bool done, RunScaledRows(rows));
    return done ? absl::OkStatus() : RunFinished(rows);
  }

  Status RunGemm(const Rows& rows) {
    Fp8GemmLaunch launch;
    launch.codes = rows.codes;
    launch.codes_stride = codes_stride_;
    launch.x_scales = rows.scales;
    launch.x_row_stride = plan_.blocks ? 1 : scales_stride_;
    launch.x_step_stride = PaddedRows(rows);
    launch.m = rows.m;
    launch.blocks = plan_.blocks;
    launch.y = rows.y;
    launch.y_type = static_cast<Element>(args_.y.dtype);
    launch.y_stride = args_.y.row_stride;
    launch.partials = reinterpret_cast<float*>(workspace_ + plan_.partials_offset);
    launch.multiprocessors = multiprocessors_;
    return Check(LaunchFp8Gemm(view_, launch, stream_));
  }

  // Without a bias results can be rounded where they are made. A weight's marks of NaN are not
  // needed: cuBLASLt multiplies its NaN codes.
  bool IsDirect(const Rows& rows) const {
    const auto y_bytes = static_cast<int64_t>(DTypeBytes(args_.y.dtype));
    return !spec_.has_bias && IsAligned(rows.y, args_.y.row_stride * y_bytes);
  }

  BlasProblem ProblemOf(const Rows& rows, BlasScales scales, bool direct) const {
    BlasProblem problem;
    problem.input = DType::kF8E4M3;
    problem.output = direct ? args_.y.dtype : DType::kF32;
    problem.m = rows.m;
    problem.n = spec_.n;
    problem.k = plan_.k_padded;
    problem.x_stride = codes_stride_;
    problem.w_stride = int64_t{view_.units} * kUnitInputs;
    problem.y_stride = direct ? args_.y.row_stride : spec_.n;
    problem.scales = scales;
    problem.workspace_bytes = kBlasBytes;
    return problem;
  }

  Status Multiply(const BlasProblem& problem, const Rows& rows, const float* x_scales,
                  const float* w_scales, void* to) {
    return blas_.RunScaled(problem, rows.codes, x_scales, view_.codes, w_scales, to,
                           workspace_ + plan_.blas_offset, stream_);
  }

  // y from the sums, scaled where they are not yet.
  Status Finish(const Rows& rows, bool scaled) {
    FinishArgs finish;
    finish.sums = Sums();
    finish.m = rows.m;
    finish.n = view_.n;
    if (!scaled) {
      finish.x_scales = rows.scales;
      finish.x_stride = scales_stride_;
      finish.w_scales = static_cast<const float*>(view_.scales);
      finish.rows_per_scale = view_.rows_per_scale;
      finish.w_stride = view_.groups;
    }
    if (spec_.has_bias) finish.bias = view_.bias;
    finish.y = rows.y;
    finish.y_type = static_cast<Element>(args_.y.dtype);
    finish.y_stride = args_.y.row_stride;
    return Check(LaunchFinish(finish, stream_));
  }

  // Scales of blocks, applied by cuBLASLt, which has no algorithm for some long K and few rows.
  Status RunBlocks(const Rows& rows) {
    const bool direct = IsDirect(rows) && rows.m % kBlockRowsAlign == 0;
    if (!direct && rows.m > plan_.sums_rows) return RunGemm(rows);
    BlasProblem problem = ProblemOf(rows, BlasScales::kBlocks, direct);
    problem.m = PaddedRows(rows);
    NIBBLE_ASSIGN_OR_RETURN(const bool has, blas_.Has(problem));
    if (!has) return RunGemm(rows);
    void* to = direct ? static_cast<void*>(rows.y) : Sums();
    NIBBLE_RETURN_IF_ERROR(
        Multiply(problem, rows, rows.scales, static_cast<const float*>(view_.scales), to));
    return direct ? absl::OkStatus() : Finish(rows, true);
  }

  // One scale for all of x and all of w, or one a row and output, applied by cuBLASLt. False where
  // it has none or would be slower than RunFinished.
  StatusOr<bool> RunScaledRows(const Rows& rows) {
    if (!IsDirect(rows)) return false;
    const bool tensor =
        spec_.scale_layout == ScaleLayout::kTensor &&
        (args_.activation == QuantMode::kStatic || scales_stride_ == 0 || args_.x.rows == 1);
    const bool side_by_side = scales_stride_ == 1 || rows.m == 1;
    if (!tensor && (!side_by_side || IsFinishedFaster(rows.m))) return false;
    const BlasProblem problem =
        ProblemOf(rows, tensor ? BlasScales::kTensor : BlasScales::kRows, true);
    NIBBLE_ASSIGN_OR_RETURN(const bool has, blas_.Has(problem));
    if (!has) return false;
    NIBBLE_RETURN_IF_ERROR(
        Multiply(problem, rows, rows.scales, static_cast<const float*>(view_.scales), rows.y));
    return true;
  }

  // Whether plain codes multiplied to binary32 sums, and a kernel that scales these, take less time
  // than cuBLASLt's scales of rows: its tiles of 128 x 128 do not split K.
  bool IsFinishedFaster(int64_t m) const {
    constexpr int64_t kTile = 128;
    return m < kTile || CeilDiv(m, kTile) * CeilDiv(spec_.n, kTile) <= multiprocessors_ / 2;
  }

  // Codes multiplied as they are, then scales, bias and rounding.
  Status RunFinished(const Rows& all) {
    const auto y_bytes = static_cast<int64_t>(DTypeBytes(args_.y.dtype));
    for (int64_t begin = 0; begin < all.m; begin += plan_.sums_rows) {
      Rows rows = all;
      rows.m = std::min(plan_.sums_rows, all.m - begin);
      rows.codes += begin * codes_stride_;
      rows.scales += begin * scales_stride_;
      rows.y += begin * args_.y.row_stride * y_bytes;
      const BlasProblem problem = ProblemOf(rows, BlasScales::kTensor, false);
      NIBBLE_ASSIGN_OR_RETURN(const bool has, blas_.Has(problem));
      if (!has) {
        NIBBLE_RETURN_IF_ERROR(RunGemm(rows));
        continue;
      }
      NIBBLE_RETURN_IF_ERROR(Multiply(problem, rows, nullptr, nullptr, Sums()));
      NIBBLE_RETURN_IF_ERROR(Finish(rows, false));
    }
    return absl::OkStatus();
  }

  const MatmulArgs& args_;
  const WeightSpec& spec_;
  const WeightView& view_;
  const bool cublas_;
  const int multiprocessors_;
  const Plan plan_;
  char* workspace_;
  Context& context_;
  Blas& blas_;
  cudaStream_t stream_;
  const char* codes_ = nullptr;
  int64_t codes_stride_ = 0;
  const float* scales_ = nullptr;
  int64_t scales_stride_ = 1;  // without blocks
};

}  // namespace

bool IsFp8Kernel(const Choice& choice) {
  return choice.kernel == "cuda_fp8_gemm" || IsCublas(choice);
}

uint64_t Fp8MatmulWorkspaceBytes(const Problem& problem, const Choice& choice,
                                 const DeviceInfo& device) {
  return Plan(problem.weight, problem.m, problem.quant, IsCublas(choice), device.cores)
      .workspace.total();
}

Status RunFp8Matmul(const MatmulArgs& args, const CudaWeight& weight, const Choice& choice,
                    void* workspace, const DeviceInfo& device, Context& context, Blas& blas,
                    cudaStream_t stream) {
  Fp8Matmul matmul(args, weight, IsCublas(choice), static_cast<char*>(workspace), device, context,
                   blas, stream);
  return matmul.Run();
}

}  // namespace nibble::cuda
