#include "kernels/cpu/device.h"

#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/weight_ops.h"

namespace nibble::cpu {
namespace {

class CpuWeight final : public DeviceWeight {
 public:
  CpuWeight(const MemoryBudget* owner, Allocation memory, const PackedWeight& packed,
            float input_scale)
      : DeviceWeight(packed.spec, memory.size(), input_scale),
        owner_(owner),
        memory_(std::move(memory)),
        packed_(packed) {}

  // Identifies the device that made it; not to be dereferenced.
  const MemoryBudget* owner() const { return owner_; }
  const PackedWeight& packed() const { return packed_; }

 private:
  const MemoryBudget* owner_;
  Allocation memory_;
  PackedWeight packed_;
};

// Everything enqueued is done when the call that enqueued it returns.
class CpuStream final : public Stream {
 public:
  Status Copy(void* to, const void* from, uint64_t bytes) override {
    if (bytes > 0) std::memmove(to, from, bytes);
    return absl::OkStatus();
  }

  Status Synchronize() override { return absl::OkStatus(); }

  Status Mark(int slot) override {
    NIBBLE_RETURN_IF_ERROR(CheckSlot(slot));
    marks_[slot] = std::chrono::steady_clock::now();
    return absl::OkStatus();
  }

  StatusOr<double> MicrosecondsBetween(int begin_slot, int end_slot) override {
    for (const int slot : {begin_slot, end_slot}) {
      NIBBLE_RETURN_IF_ERROR(CheckSlot(slot));
      if (!marks_[slot]) {
        return absl::InvalidArgumentError(
            fmt::format("slot: expected a marked one; received {}", slot));
      }
    }
    const std::chrono::duration<double, std::micro> elapsed =
        *marks_[end_slot] - *marks_[begin_slot];
    return elapsed.count();
  }

  Status BeginCapture() override { return NoGraphs(); }
  StatusOr<std::unique_ptr<Graph>> EndCapture() override { return NoGraphs(); }
  Status Launch(Graph&) override { return NoGraphs(); }

 private:
  static Status NoGraphs() { return absl::UnimplementedError("graphs: the CPU backend has none"); }

  static constexpr int kSlots = 4;

  static Status CheckSlot(int slot) {
    if (slot >= 0 && slot < kSlots) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("slot: expected 0 to {}; received {}", kSlots - 1, slot));
  }

  std::optional<std::chrono::steady_clock::time_point> marks_[kSlots];
};

Status CheckKernel(const Choice& choice, Op op) {
  const std::vector<std::string_view> names = KernelNames(BackendKind::kCpu, op);
  for (const std::string_view name : names) {
    if (choice.kernel == name) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format(
      "choice.kernel: expected a kernel of {}; received '{}'", OpName(op), choice.kernel));
}

Status CheckWorkspace(const void* workspace) {
  if (workspace != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError("workspace: expected WorkspaceBytes bytes; received null");
}

}  // namespace

CpuDevice::CpuDevice(DeviceInfo info, std::unique_ptr<ThreadPool> pool,
                     std::vector<hwy::AlignedFreeUniquePtr<float[]>> scratch)
    : info_(std::move(info)),
      budget_(std::make_shared<MemoryBudget>(info_.id, info_.memory_bytes)),
      pool_(std::move(pool)),
      scratch_(std::move(scratch)) {
  for (const auto& part : scratch_) scratch_of_thread_.push_back(part.get());
}

StatusOr<std::unique_ptr<Buffer>> CpuDevice::Allocate(uint64_t bytes, MemoryKind kind) {
  const bool staging = kind == MemoryKind::kStaging;
  NIBBLE_ASSIGN_OR_RETURN(
      Allocation allocation,
      Allocation::Create(budget_, bytes, nullptr, staging ? "a staging buffer" : "a buffer"));
  return std::make_unique<CpuBuffer>(std::move(allocation), bytes);
}

StatusOr<std::unique_ptr<Stream>> CpuDevice::CreateStream() {
  return std::make_unique<CpuStream>();
}

uint64_t CpuDevice::WeightBytes(const WeightSpec& spec) const {
  return PackedLayout(spec).total_bytes;
}

StatusOr<std::unique_ptr<Device::Reservation>> CpuDevice::Reserve(uint64_t bytes) {
  NIBBLE_RETURN_IF_ERROR(budget_->Take(bytes, "a reservation"));
  return std::make_unique<CpuReservation>(budget_, bytes);
}

StatusOr<std::unique_ptr<DeviceWeight>> CpuDevice::Upload(const CanonicalWeight& weight,
                                                          Reservation* reservation) {
  NIBBLE_RETURN_IF_ERROR(ValidateWeight(weight));
  auto* own_reservation = dynamic_cast<CpuReservation*>(reservation);
  if (reservation != nullptr &&
      (own_reservation == nullptr || own_reservation->budget() != budget_.get())) {
    return absl::InvalidArgumentError(
        fmt::format("reservation: expected one of {}; received one of another device", info_.id));
  }
  NIBBLE_ASSIGN_OR_RETURN(Allocation memory, Allocation::Create(budget_, WeightBytes(weight.spec),
                                                                own_reservation, "a weight"));
  try {
    const PackedWeight packed = Pack(weight, memory.data());
    return std::make_unique<CpuWeight>(budget_.get(), std::move(memory), packed,
                                       weight.input_scale);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("host memory: the system refused scratch for packing");
  }
}

StatusOr<const PackedWeight*> CpuDevice::PackedOf(const DeviceWeight* weight) const {
  const auto* own = dynamic_cast<const CpuWeight*>(weight);
  if (own == nullptr || own->owner() != budget_.get()) {
    return absl::InvalidArgumentError(
        fmt::format("weight: expected one of {}; received one of another device", info_.id));
  }
  return &own->packed();
}

StatusOr<ConstMatrixView> CpuDevice::DenseView(const DeviceWeight& weight) const {
  NIBBLE_ASSIGN_OR_RETURN(const PackedWeight* packed, PackedOf(&weight));
  const WeightSpec& spec = weight.spec();
  if (spec.format != Format::kDense) {
    return absl::InvalidArgumentError(
        fmt::format("weight: expected format dense; received {}", FormatName(spec.format)));
  }
  return MakeConstView(packed->codes, spec.dtype, spec.n, spec.k);
}

uint64_t CpuDevice::WorkspaceBytes(const Problem& problem, const Choice&) const {
  if (problem.m <= 0) return 0;
  switch (problem.op) {
    case Op::kMatmul:
      return MatmulWorkspaceBytes(problem.m, problem.weight.k);
    case Op::kNormQuant:
    case Op::kSiluMulQuant:
      return RowOpWorkspaceBytes(problem.d, pool_->threads());
    case Op::kDequantize:
      break;
  }
  return 0;
}

Status CpuDevice::Matmul(const MatmulArgs& args, const Choice& choice, void* workspace, Stream&) {
  NIBBLE_RETURN_IF_ERROR(ValidateMatmul(args));
  NIBBLE_RETURN_IF_ERROR(CheckKernel(choice, Op::kMatmul));
  NIBBLE_ASSIGN_OR_RETURN(const PackedWeight* packed, PackedOf(args.weight));
  if (args.x.rows == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(CheckWorkspace(workspace));
  const std::lock_guard lock(compute_mutex_);
  RunMatmul(args, *packed, choice.kernel == "cpu_gemv", workspace, scratch_of_thread_, *pool_);
  return absl::OkStatus();
}

Status CpuDevice::Dequantize(const DequantizeArgs& args, const Choice& choice, void*, Stream&) {
  NIBBLE_RETURN_IF_ERROR(ValidateDequantize(args));
  NIBBLE_RETURN_IF_ERROR(CheckKernel(choice, Op::kDequantize));
  NIBBLE_ASSIGN_OR_RETURN(const PackedWeight* packed, PackedOf(args.weight));
  if (args.out.rows == 0) return absl::OkStatus();
  const std::lock_guard lock(compute_mutex_);
  RunDequantize(args, *packed, *pool_);
  return absl::OkStatus();
}

Status CpuDevice::NormQuant(const NormQuantArgs& args, const Choice& choice, void* workspace,
                            Stream&) {
  NIBBLE_RETURN_IF_ERROR(ValidateNormQuant(args));
  NIBBLE_RETURN_IF_ERROR(CheckKernel(choice, Op::kNormQuant));
  if (args.x.rows == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(CheckWorkspace(workspace));
  const std::lock_guard lock(compute_mutex_);
  RunNormQuant(args, workspace, *pool_);
  return absl::OkStatus();
}

Status CpuDevice::SiluMulQuant(const SiluMulQuantArgs& args, const Choice& choice, void* workspace,
                               Stream&) {
  NIBBLE_RETURN_IF_ERROR(ValidateSiluMulQuant(args));
  NIBBLE_RETURN_IF_ERROR(CheckKernel(choice, Op::kSiluMulQuant));
  if (args.x.rows == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(CheckWorkspace(workspace));
  const std::lock_guard lock(compute_mutex_);
  RunSiluMulQuant(args, workspace, *pool_);
  return absl::OkStatus();
}

}  // namespace nibble::cpu
