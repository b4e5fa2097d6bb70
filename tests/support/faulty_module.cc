// Presents a CPU device as the CUDA backend's, "cuda:0". A matmul of so many rows fails, of so many
// others loses the device, or hangs (faulty_module.h).
#include "tests/support/faulty_module.h"

#include <unistd.h>

#include <mutex>
#include <utility>

#include "kernels/core/cuda_module_abi.h"
#include "nibble/backend.h"

namespace nibble::testing {
namespace {

class FaultyDevice final : public Device {
 public:
  explicit FaultyDevice(std::unique_ptr<Device> cpu) : cpu_(std::move(cpu)), info_(cpu_->info()) {
    info_.id = "cuda:0";
  }

  const DeviceInfo& info() const override { return info_; }
  void SetBatchInvariant() override { info_.batch_invariant = true; }
  MemoryUse memory() const override { return cpu_->memory(); }
  Status health() const override {
    const std::lock_guard lock(mutex_);
    return health_;
  }
  StatusOr<std::unique_ptr<Buffer>> Allocate(uint64_t bytes, MemoryKind kind) override {
    return cpu_->Allocate(bytes, kind);
  }
  StatusOr<std::unique_ptr<Stream>> CreateStream() override { return cpu_->CreateStream(); }
  uint64_t WeightBytes(const WeightSpec& spec) const override { return cpu_->WeightBytes(spec); }
  StatusOr<std::unique_ptr<Reservation>> Reserve(uint64_t bytes) override {
    return cpu_->Reserve(bytes);
  }
  StatusOr<std::unique_ptr<DeviceWeight>> Upload(const CanonicalWeight& weight,
                                                 Reservation* reservation) override {
    return cpu_->Upload(weight, reservation);
  }
  StatusOr<ConstMatrixView> DenseView(const DeviceWeight& weight) const override {
    return cpu_->DenseView(weight);
  }
  uint64_t WorkspaceBytes(const Problem& problem, const Choice& choice) const override {
    return cpu_->WorkspaceBytes(problem, choice);
  }
  Status Matmul(const MatmulArgs& args, const Choice& choice, void* workspace,
                Stream& stream) override {
    if (args.x.rows == kRowsThatHang) {
      while (true) pause();
    }
    if (args.x.rows == kRowsThatFail) {
      return absl::InternalError("a launch on cuda:0: out of resources");
    }
    if (args.x.rows == kRowsThatLoseTheDevice) {
      const std::lock_guard lock(mutex_);
      health_ = absl::UnavailableError("a kernel of cuda:0: an illegal address");
      return health_;
    }
    return cpu_->Matmul(args, choice, workspace, stream);
  }
  Status Dequantize(const DequantizeArgs& args, const Choice& choice, void* workspace,
                    Stream& stream) override {
    return cpu_->Dequantize(args, choice, workspace, stream);
  }
  Status NormQuant(const NormQuantArgs& args, const Choice& choice, void* workspace,
                   Stream& stream) override {
    return cpu_->NormQuant(args, choice, workspace, stream);
  }
  Status SiluMulQuant(const SiluMulQuantArgs& args, const Choice& choice, void* workspace,
                      Stream& stream) override {
    return cpu_->SiluMulQuant(args, choice, workspace, stream);
  }

 private:
  const std::unique_ptr<Device> cpu_;
  DeviceInfo info_;
  mutable std::mutex mutex_;
  Status health_;
};

StatusOr<std::vector<std::unique_ptr<Device>>> OpenDevices() {
  CpuOptions options;
  options.threads = 1;
  options.memory_bytes = uint64_t{1} << 28;
  options.measure_bandwidth = false;
  NIBBLE_ASSIGN_OR_RETURN(auto cpu, CreateCpuDevices(options));
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(std::make_unique<FaultyDevice>(std::move(cpu.front())));
  return devices;
}

}  // namespace
}  // namespace nibble::testing

extern "C" __attribute__((visibility("default"))) const nibble::core::CudaModule*
nibble_cuda_module_v1() {
  static constexpr nibble::core::CudaModule kModule = {
      nibble::core::kCudaModuleAbi, nibble::core::CudaModuleLayout(), nibble::testing::OpenDevices};
  return &kModule;
}
