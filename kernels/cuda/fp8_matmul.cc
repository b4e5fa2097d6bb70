#include "kernels/cuda/fp8_matmul.h"

#include <algorithm>

#include "kernels/cuda/launch/activations.h"
#include "kernels/cuda/launch/fp8_gemm.h"
#include "kernels/cuda/workspace.h"

namespace nibble::cuda {
namespace {

constexpr int64_t kCodesAlign = 16;
// Sums that lie in memory at a time, and outputs they are of at least: whole blocks of scales.
constexpr int64_t kSumsBytes = int64_t{256} << 20;
constexpr int64_t kChunkOutputs = 128;

bool IsCublas(const Choice& choice) { return choice.kernel == "cuda_fp8_cublas"; }

// Whether a scale of either side changes along K.
bool HasBlocks(const WeightSpec& spec, QuantMode activation) {
  return activation == QuantMode::kPerGroup ||
         (spec.scale_layout == ScaleLayout::kBlock && spec.scale_block_k < spec.k);
}

struct Plan {
  Plan(const WeightSpec& spec, int64_t m, QuantMode activation, bool cublas)
      : blocks(HasBlocks(spec, activation)),
        steps(activation == QuantMode::kPerGroup ? CeilDiv(spec.k, kQuantGroup) : 1),
        k_padded(RoundUp(spec.k, kCodesAlign)),
        step_stride(cublas ? m : RoundUp(m, kFp8RowUnit)) {
    codes_offset = workspace.Place(m, k_padded);
    scales_offset = workspace.Place(steps, step_stride * int64_t{sizeof(float)});
    if (!cublas) return;
    const int64_t by_sums = kSumsBytes / (std::min(m, kSumsBytes) * 4);
    chunk = std::max(kChunkOutputs, by_sums / kChunkOutputs * kChunkOutputs);
    chunk = std::min(chunk, spec.n);
    blas_offset = workspace.Place(1, BlasOptions{}.workspace_bytes);
    if (spec.has_bias) sums_offset = workspace.Place(m, chunk * int64_t{sizeof(float)});
  }
  Workspace workspace;
  bool blocks;
  int64_t steps;        // scales of a row of x
  int64_t k_padded;     // bytes of a row of codes
  int64_t step_stride;  // from one step's scales of x to the next one's
  int64_t chunk = 0;    // outputs at a time, where sums are rounded apart
  uint64_t codes_offset = 0;
  uint64_t scales_offset = 0;
  uint64_t blas_offset = 0;
  uint64_t sums_offset = 0;
};

// One call's arguments beside its plan.
class Fp8Matmul {
 public:
  Fp8Matmul(const MatmulArgs& args, const CudaWeight& weight, bool cublas, char* workspace,
            Context& context, cudaStream_t stream)
      : args_(args),
        spec_(weight.spec()),
        view_(weight.view()),
        cublas_(cublas),
        plan_(spec_, args.x.rows, args.activation, cublas),
        workspace_(workspace),
        context_(context),
        stream_(stream) {}

  Status RunGemm(int multiprocessors) {
    NIBBLE_RETURN_IF_ERROR(PrepareActivations());
    Fp8GemmLaunch launch;
    launch.x = x_;
    launch.m = args_.x.rows;
    launch.blocks = plan_.blocks;
    launch.y = args_.y.data;
    launch.y_type = static_cast<Element>(args_.y.dtype);
    launch.y_stride = args_.y.row_stride;
    launch.multiprocessors = multiprocessors;
    return Check(LaunchFp8Gemm(view_, launch, stream_));
  }

  Status RunCublas(Blas& blas) {
    NIBBLE_RETURN_IF_ERROR(PrepareActivations());
    const int64_t m = args_.x.rows;
    const auto y_bytes = static_cast<int64_t>(DTypeBytes(args_.y.dtype));
    const int64_t w_stride = int64_t{view_.units} * kUnitInputs;
    // A weight's marks of NaN are not needed: cuBLASLt multiplies its NaN codes.
    const bool direct = !spec_.has_bias && IsAligned(args_.y.data, args_.y.row_stride * y_bytes);
    BlasProblem problem;
    problem.input = DType::kF8E4M3;
    problem.output = direct ? args_.y.dtype : DType::kF32;
    problem.m = m;
    problem.k = plan_.k_padded;
    problem.x_stride = x_.stride;
    problem.w_stride = w_stride;
    problem.y_stride = direct ? args_.y.row_stride : plan_.chunk;
    problem.scales = plan_.blocks ? BlasScales::kBlocks : BlasScales::kRows;
    const int64_t chunk = direct ? spec_.n : plan_.chunk;
    for (int64_t begin = 0; begin < spec_.n; begin += chunk) {
      problem.n = std::min(chunk, spec_.n - begin);
      char* y = static_cast<char*>(args_.y.data) + begin * y_bytes;
      char* to = direct ? y : workspace_ + plan_.sums_offset;
      const char* w = static_cast<const char*>(view_.codes) + begin * w_stride;
      const float* w_scales =
          static_cast<const float*>(view_.scales) + begin / view_.rows_per_scale * view_.groups;
      NIBBLE_RETURN_IF_ERROR(blas.RunScaled(problem, x_.codes, x_.scales, w, w_scales, to,
                                            workspace_ + plan_.blas_offset, stream_));
      if (direct) continue;
      NIBBLE_RETURN_IF_ERROR(Check(
          LaunchBiasAndRound(reinterpret_cast<const float*>(to), plan_.chunk, view_.bias + begin, m,
                             static_cast<int32_t>(problem.n), y,
                             static_cast<Element>(args_.y.dtype), args_.y.row_stride, stream_)));
    }
    return absl::OkStatus();
  }

 private:
  Status Check(cudaError_t error) { return context_.Check(error, "an FP8 matmul"); }

  // x_: codes and scales as they are given, where the kernel takes them so, else in the workspace.
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
    const auto k_padded = static_cast<int32_t>(plan_.k_padded);
    auto* codes = reinterpret_cast<uint8_t*>(workspace_ + plan_.codes_offset);
    auto* scales = reinterpret_cast<float*>(workspace_ + plan_.scales_offset);
    x_ = {codes, k_padded, scales, 1, plan_.steps > 1 ? plan_.step_stride : 0};
    if (args_.x.dtype != DType::kF8E4M3) {
      return Check(LaunchFp8Quantize(x, codes, k_padded, scales, plan_.step_stride, stream_));
    }
    if (spec_.k == k_padded && IsAligned(args_.x.data, args_.x.row_stride)) {
      x_.codes = static_cast<const uint8_t*>(args_.x.data);
      x_.stride = x.m == 1 ? k_padded : args_.x.row_stride;
    } else {
      NIBBLE_RETURN_IF_ERROR(Check(LaunchFp8CopyCodes(x, codes, k_padded, stream_)));
    }
    const bool one_a_row = !plan_.blocks && (!cublas_ || x.x_scales_stride == 1);
    if (one_a_row) {
      x_.scales = x.x_scales;
      x_.row_stride = x.x_scales_stride;
      return absl::OkStatus();
    }
    return Check(LaunchFp8CopyScales(x, static_cast<int32_t>(plan_.steps), scales,
                                     plan_.step_stride, stream_));
  }

  const MatmulArgs& args_;
  const WeightSpec& spec_;
  const WeightView& view_;
  const bool cublas_;
  const Plan plan_;
  char* workspace_;
  Context& context_;
  cudaStream_t stream_;
  Fp8Activations x_;
};

}  // namespace

bool IsFp8Kernel(const Choice& choice) {
  return choice.kernel == "cuda_fp8_gemm" || IsCublas(choice);
}

uint64_t Fp8MatmulWorkspaceBytes(const Problem& problem, const Choice& choice) {
  return Plan(problem.weight, problem.m, problem.quant, IsCublas(choice)).workspace.total();
}

Status RunFp8Matmul(const MatmulArgs& args, const CudaWeight& weight, const Choice& choice,
                    void* workspace, const DeviceInfo& device, Context& context, Blas& blas,
                    cudaStream_t stream) {
  const bool cublas = IsCublas(choice);
  Fp8Matmul matmul(args, weight, cublas, static_cast<char*>(workspace), context, stream);
  return cublas ? matmul.RunCublas(blas) : matmul.RunGemm(device.cores);
}

}  // namespace nibble::cuda
