// A weight on the GPU in the layout of device/weight_view.cuh: sizes, and packing from the
// canonical bytes.
#ifndef NIBBLE_KERNELS_CUDA_PACKED_WEIGHT_H_
#define NIBBLE_KERNELS_CUDA_PACKED_WEIGHT_H_

#include <cstdint>
#include <memory>

#include "kernels/cuda/context.h"
#include "kernels/cuda/launch/pack.h"
#include "nibble/weight.h"

namespace nibble::cuda {

// The parts of a packed weight in one allocation, as offsets in bytes. Saturates at 2^63 - 1.
struct WeightLayout {
  explicit WeightLayout(const WeightSpec& spec);

  int64_t scale_groups = 0;  // stored groups of a row, those that fill up the last unit included
  int64_t chunk_rows = 0;    // rows packed at a time

  uint64_t codes_offset = 0;
  uint64_t scales_offset = 0;
  uint64_t zero_points_offset = 0;
  uint64_t group_index_offset = 0;
  uint64_t bias_offset = 0;
  uint64_t total_bytes = 0;
  uint64_t scratch_bytes = 0;  // canonical bytes on the device while packing

 private:
  uint64_t Place(int64_t rows, int64_t row_bytes);
};

class CudaWeight final : public DeviceWeight {
 public:
  CudaWeight(const WeightSpec& spec, std::shared_ptr<Context> context, DeviceMemory memory,
             const WeightView& view, float input_scale)
      : DeviceWeight(spec, memory.size(), input_scale),
        context_(std::move(context)),
        memory_(std::move(memory)),
        view_(view) {}

  const Context* context() const { return context_.get(); }
  const WeightView& view() const { return view_; }

 private:
  std::shared_ptr<Context> context_;
  DeviceMemory memory_;
  WeightView view_;
};

// Packs a valid weight on `stream` and waits for it. kUnimplemented where n or k is past 2^31 -
// 129.
StatusOr<std::unique_ptr<DeviceWeight>> PackWeight(const CanonicalWeight& weight,
                                                   std::shared_ptr<Context> context,
                                                   core::BudgetReservation* reservation,
                                                   cudaStream_t stream);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_PACKED_WEIGHT_H_
