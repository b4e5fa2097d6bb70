#include "kernels/cuda/device.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "kernels/core/packed_units.h"
#include "kernels/core/roofline.h"
#include "kernels/cuda/launch/dequantize.h"
#include "kernels/cuda/launch/row_ops.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/peaks.h"

namespace nibble::cuda {
namespace {

// Left to the CUDA context, to cuBLASLt and to kernels' local memory.
constexpr uint64_t kHeadroomBytes = uint64_t{512} << 20;

// Results up to this size cross PCIe as kernels write them, beside the kernels' own work. H200, NF4
// 28672x4096, rows copied in, host to host: M = 1 (56 KB) 40.4 us against 43.3 with a copy after
// the kernel, 64 (3.5 MiB) 226 against 297. Past it a copy costs little beside the rest.
constexpr uint64_t kDirectOutputBytes = uint64_t{4} << 20;

Status CheckWorkspace(const void* workspace, uint64_t needed) {
  if (workspace != nullptr || needed == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("workspace: expected {} bytes; received null", needed));
}

// A choice made for another problem may name a kernel that cannot run this one.
Status CheckChoice(const Problem& problem, const Choice& choice, const DeviceInfo& device) {
  if (core::CudaKernelFits(problem, choice.kernel, device.compute_capability)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("choice.kernel: expected one for {} with {} activations; received '{}'",
                  ToString(problem.weight), DTypeName(problem.input), choice.kernel));
}

// Whether rows of `view` can be read and written 8 elements at a time.
template <class View>
bool IsVector(const View& view) {
  if (view.empty()) return true;
  return view.row_stride % 8 == 0 && reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

Status CheckColumns(int64_t cols) {
  constexpr int64_t kLargest = int64_t{1} << 30;
  if (cols <= kLargest) return absl::OkStatus();
  return absl::UnimplementedError(
      fmt::format("x: expected at most {} columns; received {}", kLargest, cols));
}

void FillOutput(const OutputQuant& quant, const MatrixView& y, const MatrixView& scales,
                RowOpArgs& to) {
  to.quant = static_cast<Quant>(quant.mode);
  to.static_scale = quant.static_scale;
  to.y = y.data;
  to.y_type = static_cast<Element>(y.dtype);
  to.y_stride = y.row_stride;
  to.scales = static_cast<float*>(scales.data);
  to.scales_stride = scales.row_stride;
}

}  // namespace

StatusOr<std::unique_ptr<Device>> CudaDevice::Create(int ordinal) {
  const DeviceGuard guard(ordinal);
  DeviceInfo info;
  info.id = fmt::format("cuda:{}", ordinal);
  info.kind = BackendKind::kCuda;
  cudaDeviceProp properties{};
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  for (const cudaError_t error :
       {cudaGetDeviceProperties(&properties, ordinal), cudaMemGetInfo(&free_bytes, &total_bytes)}) {
    if (error != cudaSuccess) {
      cudaGetLastError();
      return absl::FailedPreconditionError(
          fmt::format("{}: {}", info.id, cudaGetErrorString(error)));
    }
  }
  info.name = properties.name;
  int driver = 0;
  int runtime = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess &&
      cudaRuntimeGetVersion(&runtime) == cudaSuccess) {
    info.driver = fmt::format("driver {} runtime {}", driver, runtime);
  }
  info.cores = properties.multiProcessorCount;
  info.compute_capability = properties.major * 10 + properties.minor;
  info.memory_bytes = free_bytes > kHeadroomBytes ? free_bytes - kHeadroomBytes : 0;
  // Every block reads x again: across PCIe 132 times 8 KB take 90 us (H200, NF4 4096x4096, M = 1)
  // where a copy and the kernel take 18.
  info.zero_copy_input_bytes = 0;
  info.zero_copy_output_bytes = kDirectOutputBytes;
  // A lane's thread also copies rows in and out and answers. H200, 16 cores, calls/s with 1, 2 and
  // 3 lanes: 64 callers of 1 row (NF4 4096x4096) 24,100, 31,900, 32,600; 8 callers of 256 rows 657,
  // 1,257, 1,592; 16 callers of 64 rows (28672x4096) with 2 and 3 lanes 947, 1,441.
  info.batches_in_flight = 3;
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Blas> blas, OpenBlas());
  auto context = std::make_shared<Context>(info.id, ordinal, info.memory_bytes);
  const Peaks peaks = MeasurePeaks(context, *blas, core::KnownTensorFlops(info));
  info.peak_bandwidth_bytes_per_second = peaks.bandwidth_bytes_per_second;
  info.peak_tensor_flops_per_second = peaks.tensor_flops_per_second;
  NIBBLE_RETURN_IF_ERROR(context->health());
  std::unique_ptr<CudaDevice> device(new CudaDevice(std::move(info), context, std::move(blas)));
  NIBBLE_ASSIGN_OR_RETURN(device->upload_stream_, CudaStream::Create(context));
  return std::unique_ptr<Device>(std::move(device));
}

StatusOr<std::unique_ptr<Buffer>> CudaDevice::Allocate(uint64_t bytes, MemoryKind kind) {
  NIBBLE_RETURN_IF_ERROR(health());
  if (kind == MemoryKind::kStaging) return StagingBuffer::Create(context_, bytes);
  NIBBLE_ASSIGN_OR_RETURN(DeviceMemory memory,
                          DeviceMemory::Create(context_, bytes, nullptr, "a buffer"));
  return std::make_unique<CudaBuffer>(std::move(memory), bytes);
}

StatusOr<std::unique_ptr<Stream>> CudaDevice::CreateStream() {
  NIBBLE_RETURN_IF_ERROR(health());
  return CudaStream::Create(context_);
}

uint64_t CudaDevice::WeightBytes(const WeightSpec& spec) const {
  const WeightLayout layout(spec);
  return layout.total_bytes + layout.scratch_bytes;
}

StatusOr<std::unique_ptr<Device::Reservation>> CudaDevice::Reserve(uint64_t bytes) {
  NIBBLE_RETURN_IF_ERROR(context_->budget()->Take(bytes, "a reservation"));
  return std::make_unique<core::BudgetReservation>(context_->budget(), bytes);
}

StatusOr<std::unique_ptr<DeviceWeight>> CudaDevice::Upload(const CanonicalWeight& weight,
                                                           Reservation* reservation) {
  NIBBLE_RETURN_IF_ERROR(health());
  NIBBLE_RETURN_IF_ERROR(ValidateWeight(weight));
  auto* own_reservation = dynamic_cast<core::BudgetReservation*>(reservation);
  if (reservation != nullptr &&
      (own_reservation == nullptr || own_reservation->budget() != context_->budget().get())) {
    return absl::InvalidArgumentError(
        fmt::format("reservation: expected one of {}; received one of another device", info_.id));
  }
  // Whole, by the caller's thread: copies to the device go one weight after the other.
  const CanonicalWeight whole = WithCodes(weight);
  const std::lock_guard lock(upload_mutex_);
  return PackWeight(whole, context_, own_reservation,
                    static_cast<CudaStream&>(*upload_stream_).handle());
}

StatusOr<const CudaWeight*> CudaDevice::WeightOf(const DeviceWeight* weight) const {
  const auto* own = dynamic_cast<const CudaWeight*>(weight);
  if (own == nullptr || own->context() != context_.get()) {
    return absl::InvalidArgumentError(
        fmt::format("weight: expected one of {}; received one of another device", info_.id));
  }
  return own;
}

StatusOr<cudaStream_t> CudaDevice::HandleOf(Stream& stream) const {
  const auto* own = dynamic_cast<const CudaStream*>(&stream);
  if (own == nullptr || own->context() != context_.get()) {
    return absl::InvalidArgumentError(
        fmt::format("stream: expected one of {}; received one of another device", info_.id));
  }
  return own->handle();
}

Status CudaDevice::CheckKernel(const Choice& choice, Op op) const {
  NIBBLE_RETURN_IF_ERROR(health());
  const std::vector<std::string_view> names = KernelNames(BackendKind::kCuda, op);
  if (std::find(names.begin(), names.end(), choice.kernel) != names.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "choice.kernel: expected a kernel of {}; received '{}'", OpName(op), choice.kernel));
}

StatusOr<ConstMatrixView> CudaDevice::DenseView(const DeviceWeight& weight) const {
  NIBBLE_ASSIGN_OR_RETURN(const CudaWeight* own, WeightOf(&weight));
  const WeightSpec& spec = weight.spec();
  if (spec.format != Format::kDense) {
    return absl::InvalidArgumentError(
        fmt::format("weight: expected format dense; received {}", FormatName(spec.format)));
  }
  return MakeConstView(own->view().codes, spec.dtype, spec.n, spec.k);
}

uint64_t CudaDevice::WorkspaceBytes(const Problem& problem, const Choice& choice) const {
  if (problem.m <= 0 || problem.op != Op::kMatmul) return 0;
  return MatmulWorkspaceBytes(problem, choice, info_);
}

Status CudaDevice::Matmul(const MatmulArgs& args, const Choice& choice, void* workspace,
                          Stream& stream) {
  NIBBLE_RETURN_IF_ERROR(ValidateMatmul(args));
  NIBBLE_RETURN_IF_ERROR(CheckKernel(choice, Op::kMatmul));
  NIBBLE_ASSIGN_OR_RETURN(const CudaWeight* weight, WeightOf(args.weight));
  NIBBLE_ASSIGN_OR_RETURN(const cudaStream_t handle, HandleOf(stream));
  if (args.x.rows == 0) return absl::OkStatus();
  Problem problem;
  problem.weight = weight->spec();
  problem.m = args.x.rows;
  problem.input = args.x.dtype;
  problem.output = args.y.dtype;
  problem.quant = args.activation;
  NIBBLE_RETURN_IF_ERROR(CheckChoice(problem, choice, info_));
  NIBBLE_RETURN_IF_ERROR(CheckWorkspace(workspace, MatmulWorkspaceBytes(problem, choice, info_)));
  const DeviceGuard guard(context_->ordinal());
  return RunMatmul(args, *weight, choice, workspace, info_, *context_, *blas_, handle);
}

Status CudaDevice::Dequantize(const DequantizeArgs& args, const Choice& choice, void*,
                              Stream& stream) {
  NIBBLE_RETURN_IF_ERROR(ValidateDequantize(args));
  NIBBLE_RETURN_IF_ERROR(CheckKernel(choice, Op::kDequantize));
  NIBBLE_ASSIGN_OR_RETURN(const CudaWeight* weight, WeightOf(args.weight));
  NIBBLE_ASSIGN_OR_RETURN(const cudaStream_t handle, HandleOf(stream));
  if (args.out.rows == 0) return absl::OkStatus();
  const DeviceGuard guard(context_->ordinal());
  if (weight->view().column_order != nullptr) {
    return context_->Check(
        LaunchDequantizeOrdered(weight->view(), static_cast<int32_t>(args.row_begin),
                                static_cast<int32_t>(args.out.rows), args.out.data,
                                static_cast<Element>(args.out.dtype), args.out.row_stride, handle),
        "dequantize");
  }
  return context_->Check(LaunchDequantize(weight->view(), static_cast<int32_t>(args.row_begin),
                                          static_cast<int32_t>(args.out.rows), args.out.data,
                                          static_cast<Element>(args.out.dtype), args.out.row_stride,
                                          weight->view().k, handle),
                         "dequantize");
}

Status CudaDevice::NormQuant(const NormQuantArgs& args, const Choice& choice, void*,
                             Stream& stream) {
  NIBBLE_RETURN_IF_ERROR(ValidateNormQuant(args));
  NIBBLE_RETURN_IF_ERROR(CheckKernel(choice, Op::kNormQuant));
  NIBBLE_RETURN_IF_ERROR(CheckColumns(args.x.cols));
  NIBBLE_ASSIGN_OR_RETURN(const cudaStream_t handle, HandleOf(stream));
  if (args.x.rows == 0) return absl::OkStatus();
  RowOpArgs row;
  row.x = args.x.data;
  row.x_stride = args.x.row_stride;
  row.residual = args.residual.data;
  row.residual_stride = args.residual.row_stride;
  row.residual_out = args.residual_out.data;
  row.residual_out_stride = args.residual_out.row_stride;
  row.gamma = args.gamma.data;
  row.gamma_type = static_cast<Element>(args.gamma.dtype);
  row.epsilon = args.epsilon;
  FillOutput(args.quant, args.y, args.scales, row);
  row.m = args.x.rows;
  row.d = static_cast<int32_t>(args.x.cols);
  row.vector = row.d % 8 == 0 && IsVector(args.x) && IsVector(args.residual) &&
               IsVector(args.residual_out) && IsVector(args.gamma) && IsVector(args.y);
  const DeviceGuard guard(context_->ordinal());
  return context_->Check(LaunchNormQuant(row, static_cast<Element>(args.x.dtype), handle),
                         "norm_quant");
}

Status CudaDevice::SiluMulQuant(const SiluMulQuantArgs& args, const Choice& choice, void*,
                                Stream& stream) {
  NIBBLE_RETURN_IF_ERROR(ValidateSiluMulQuant(args));
  NIBBLE_RETURN_IF_ERROR(CheckKernel(choice, Op::kSiluMulQuant));
  NIBBLE_RETURN_IF_ERROR(CheckColumns(args.x.cols));
  NIBBLE_ASSIGN_OR_RETURN(const cudaStream_t handle, HandleOf(stream));
  if (args.x.rows == 0) return absl::OkStatus();
  RowOpArgs row;
  row.x = args.x.data;
  row.x_stride = args.x.row_stride;
  FillOutput(args.quant, args.y, args.scales, row);
  row.m = args.x.rows;
  row.d = static_cast<int32_t>(args.x.cols / 2);
  row.vector = row.d % 8 == 0 && IsVector(args.x) && IsVector(args.y);
  const DeviceGuard guard(context_->ordinal());
  return context_->Check(LaunchSiluMulQuant(row, static_cast<Element>(args.x.dtype), handle),
                         "silu_mul_quant");
}

}  // namespace nibble::cuda
