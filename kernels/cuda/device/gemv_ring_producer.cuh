// How the stages of GemvRingKernel (gemv_ring.cuh) are filled.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMV_RING_PRODUCER_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMV_RING_PRODUCER_CUH_

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/gemv_ring_layout.cuh"

namespace nibble::cuda {

// The producing warp.
template <class Unit, class Shape>
struct RingProducer {
  const Ring<Unit, Shape>& r;
  const typename Unit::Map& map;
  const int lane;
  const uint64_t once;

  // Stage `part` of a tile: its units from part * kStageUnits on, none of them where they end
  // before. A tile past the last one is left out. not_own: but for what the multiplying warps copy.
  __device__ void CopyWeights(int stage, int tile, int part, bool not_own = false) const {
    constexpr int kUnits = Shape::kStageUnits;
    const int first = part * kUnits;
    const int units = max(0, min(kUnits, r.w.units - first));
    const int parts = min(Shape::kTiles, r.tiles16 - tile * Shape::kTiles);
    const uint32_t full = SharedAddress(r.full + stage);
    if constexpr (Unit::kBoxed) {
      if (lane == 0) {
        const bool boxed = units > 0 && !not_own;
        int bytes = boxed ? RingStage<Unit, Shape>::kBytes : 0;
        if (r.Staged()) bytes += r.args.m * units * kUnitXBytes;
        ArriveExpecting(full, bytes);
        if (boxed) {
          TensorCopyUnitsOnce(SharedAddress(r.Stage(stage)), map, tile * Shape::kTiles * kUnitRows,
                              first, full, once);
        }
      }
      __syncwarp();
      return;
    }
    if (lane == 0) {
      int bytes = parts * units * (Unit::kCodeBytes + Unit::kScaleBytes + Unit::kZeroBytes);
      if (r.Staged()) bytes += r.args.m * units * kUnitXBytes;
      ArriveExpecting(full, bytes);
    }
    __syncwarp();
    if (lane >= parts || units == 0) return;
    const int64_t unit = static_cast<int64_t>(tile * Shape::kTiles + lane) * r.w.units + first;
    const uint32_t to = SharedAddress(r.Stage(stage));
    const auto copy = [&](const void* from, int unit_bytes, int offset) {
      BulkCopyOnce(to + offset + lane * kUnits * unit_bytes,
                   static_cast<const char*>(from) + unit * unit_bytes, units * unit_bytes, full,
                   once);
    };
    using Stage = RingStage<Unit, Shape>;
    copy(r.w.codes, Unit::kCodeBytes, 0);
    if constexpr (Unit::kScaleBytes > 0) copy(r.w.scales, Unit::kScaleBytes, Stage::kScalesAt);
    if constexpr (Unit::kZeroBytes > 0) copy(r.w.zero_points, Unit::kZeroBytes, Stage::kZerosAt);
  }

  __device__ void CopyRows(uint32_t to, int row_bytes, int first_unit, int units,
                           uint32_t barrier) const {
    for (int row = lane; row < r.args.m; row += 32) {
      const auto* from =
          static_cast<const uint16_t*>(r.args.x) + row * r.args.x_stride + first_unit * kUnitInputs;
      BulkCopy(to + row * row_bytes, from, units * kUnitXBytes, barrier);
    }
  }
  __device__ void CopyStagedRows(int stage, int part) const {
    const int first = part * Shape::kStageUnits;
    const int units = min(Shape::kStageUnits, r.w.units - first);
    if (units <= 0) return;
    CopyRows(SharedAddress(r.Stage(stage)) + RingStage<Unit, Shape>::kBytes,
             RingStagedRowBytes<Shape>(), first, units, SharedAddress(r.full + stage));
  }
  // In parts of whole rounds, so that the first tile need not wait for all of it.
  __device__ void CopyResidentRows() const {
    for (int part = 0; part < r.XParts(); ++part) {
      const int first = part * r.XPartRounds() * Shape::kWarps;
      const int units = min(r.XPartRounds() * Shape::kWarps, r.w.units - first);
      const uint32_t barrier = SharedAddress(r.x_full + part);
      if (lane == 0) ArriveExpecting(barrier, r.args.m * units * kUnitXBytes);
      __syncwarp();
      CopyRows(SharedAddress(r.shared) + r.layout.x_offset + first * kUnitXBytes,
               RingResidentRowBytes(r.w.units), first, units, barrier);
    }
  }

  // Fills of the ring in order; the tiles of a block are gridDim.x apart.
  __device__ int Parts() const { return r.rounds * Shape::kStagesPerRound; }
  __device__ int Fills() const {
    const int step = static_cast<int>(gridDim.x);
    return (r.tiles - static_cast<int>(blockIdx.x) + step - 1) / step * Parts();
  }
  __device__ int TileOf(int fill) const {
    return static_cast<int>(blockIdx.x) + fill / Parts() * static_cast<int>(gridDim.x);
  }
  __device__ int FirstFills() const { return min(r.ring.stages, Fills()); }

  // Before x is there: the whole ring.
  __device__ void Start() const {
    const int fills = FirstFills();
    for (int fill = 0; fill < fills; ++fill) {
      CopyWeights(fill, TileOf(fill), fill % Parts(),
                  Shape::kOwnFirst && fill < Shape::kStagesPerRound);
    }
  }

  // The rest, with x.
  __device__ void Run() const {
    const int parts = Parts();
    const int fills = Fills();
    int fill = FirstFills();
    int tile = TileOf(fill);
    int part = fill % parts;
    if (r.Resident()) CopyResidentRows();
    if (r.Staged()) {
      for (int i = 0; i < fill; ++i) CopyStagedRows(i, i % parts);
    }
    RingSlot slot;  // the first phase of `empty` ends with the first use of a stage
    for (; fill < fills; ++fill) {
      WaitBarrier(SharedAddress(r.empty + slot.stage), slot.parity);
      CopyWeights(slot.stage, tile, part);
      if (r.Staged()) CopyStagedRows(slot.stage, part);
      slot.Advance(1, r.ring.stages);
      if (++part == parts) {
        part = 0;
        tile += gridDim.x;
      }
    }
  }
};

// The first units of a block's first tile into the first stages, each by the warp that multiplies
// it, as a box would lie there.
template <class Unit, class Shape>
__device__ inline void CopyOwnFirst(const Ring<Unit, Shape>& r, int warp, int lane) {
  if (warp >= r.w.units) return;
  const uint32_t to = SharedAddress(r.Stage(warp / Shape::kStageUnits)) +
                      warp % Shape::kStageUnits * RingStage<Unit, Shape>::kUnitPitch;
  const int64_t row_bytes = static_cast<int64_t>(r.w.units) * kUnitInputs;
  const int first_row = static_cast<int>(blockIdx.x) * Shape::kRows;
  const int place = lane % 8;
#pragma unroll
  for (int i = 0; i < Shape::kRows / 4; ++i) {
    const int row = i * 4 + lane / 8;
    if (first_row + row >= r.tiles16 * kUnitRows) continue;
    const char* from = static_cast<const char*>(r.w.codes) + (first_row + row) * row_bytes +
                       warp * kUnitInputs + place * 16;
    CopyAsync16Bytes(to + row * kUnitInputs + (place ^ row % 8) * 16, from);
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMV_RING_PRODUCER_CUH_
