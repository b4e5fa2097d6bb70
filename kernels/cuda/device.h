// The CUDA backend: a device is one GPU.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_H_
#define NIBBLE_KERNELS_CUDA_DEVICE_H_

#include <memory>
#include <mutex>

#include "kernels/cuda/blas.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/packed_weight.h"
#include "kernels/cuda/stream.h"
#include "nibble/backend.h"

namespace nibble::cuda {

class CudaDevice final : public Device {
 public:
  // Opens the GPU `ordinal` of the CUDA runtime as device "cuda:<ordinal>".
  static StatusOr<std::unique_ptr<Device>> Create(int ordinal);

  const DeviceInfo& info() const override { return info_; }
  void SetBatchInvariant() override { info_.batch_invariant = true; }
  MemoryUse memory() const override { return context_->budget()->use(); }
  Status health() const override { return context_->health(); }

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
  CudaDevice(DeviceInfo info, std::shared_ptr<Context> context, std::unique_ptr<Blas> blas)
      : info_(std::move(info)), context_(std::move(context)), blas_(std::move(blas)) {}

  Status CheckKernel(const Choice& choice, Op op) const;
  // kInvalidArgument where another device made the object.
  StatusOr<const CudaWeight*> WeightOf(const DeviceWeight* weight) const;
  StatusOr<cudaStream_t> HandleOf(Stream& stream) const;

  DeviceInfo info_;
  std::shared_ptr<Context> context_;
  std::unique_ptr<Blas> blas_;
  std::mutex upload_mutex_;  // guards upload_stream_: one upload at a time
  std::unique_ptr<Stream> upload_stream_;
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_H_
