// The CPU backend: a device is a thread pool and a share of the machine's memory. Work on a stream
// runs on the calling thread, helped by the pool, before the call returns; the device runs one op
// at a time.
#ifndef NIBBLE_KERNELS_CPU_DEVICE_H_
#define NIBBLE_KERNELS_CPU_DEVICE_H_

#include <memory>
#include <mutex>
#include <vector>

#include "hwy/aligned_allocator.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/packed_weight.h"
#include "kernels/cpu/thread_pool.h"
#include "nibble/backend.h"

namespace nibble::cpu {

class CpuDevice final : public Device {
 public:
  // `scratch`: kPanelScratchFloats for each thread of `pool`.
  CpuDevice(DeviceInfo info, std::unique_ptr<ThreadPool> pool,
            std::vector<hwy::AlignedFreeUniquePtr<float[]>> scratch);

  const DeviceInfo& info() const override { return info_; }
  void SetBatchInvariant() override { info_.batch_invariant = true; }
  MemoryUse memory() const override { return budget_->use(); }
  Status health() const override { return absl::OkStatus(); }

  StatusOr<std::unique_ptr<Buffer>> Allocate(uint64_t bytes, MemoryKind kind) override;
  StatusOr<std::unique_ptr<Stream>> CreateStream() override;

  uint64_t WeightBytes(const WeightSpec& spec) const override;
  StatusOr<std::unique_ptr<Reservation>> Reserve(uint64_t bytes) override;
  StatusOr<std::unique_ptr<DeviceWeight>> Upload(const CanonicalWeight& weight,
                                                 Reservation* reservation) override;
  StatusOr<ConstMatrixView> DenseView(const DeviceWeight& weight) const override;

  uint64_t WorkspaceBytes(const Problem& problem, const Choice& choice) const override;
  Status Matmul(const MatmulArgs& args, const Choice& choice, void* workspace,
                Stream& stream) override;
  Status Dequantize(const DequantizeArgs& args, const Choice& choice, void* workspace,
                    Stream& stream) override;
  Status NormQuant(const NormQuantArgs& args, const Choice& choice, void* workspace,
                   Stream& stream) override;
  Status SiluMulQuant(const SiluMulQuantArgs& args, const Choice& choice, void* workspace,
                      Stream& stream) override;

 private:
  // The packed form of `weight`, or kInvalidArgument if another device made it.
  StatusOr<const PackedWeight*> PackedOf(const DeviceWeight* weight) const;

  DeviceInfo info_;
  std::shared_ptr<MemoryBudget> budget_;
  std::mutex compute_mutex_;  // guards pool_ and scratch_: one op at a time
  std::unique_ptr<ThreadPool> pool_;
  std::vector<hwy::AlignedFreeUniquePtr<float[]>> scratch_;  // one per thread
  std::vector<float*> scratch_of_thread_;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_DEVICE_H_
