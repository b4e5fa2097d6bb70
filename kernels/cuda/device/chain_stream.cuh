// Which units a chain of gemv_chain.cuh adds, and how a warp copies them into its slots.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_CHAIN_STREAM_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_CHAIN_STREAM_CUH_

#include "kernels/cuda/device/gemv_slots.cuh"
#include "kernels/cuda/device/shared_fragments.cuh"

namespace nibble::cuda {

// Of a tile's units those of one chain: `count` from `first` on.
struct ChainUnits {
  int32_t first;
  int32_t count;

  __device__ ChainUnits(int32_t units, int chain, int chains)
      : first(units * chain / chains), count(units * (chain + 1) / chains - first) {}
};

// What a warp copies: the units of its chain of each of its tiles in turn.
template <class Unit, int kUnits>
class ChainStream {
 public:
  using Item = SlotOf<Unit, kUnits>;

  __device__ ChainStream(const WeightView& w, const ChainUnits& chain, int lane, int32_t tile,
                         int32_t step)
      : w_(w), chain_(chain), lane_(lane), tile_(tile), step_(step) {
    const int of_scales = kUnits * Item::kScaleLanes;
    const bool scales = lane < of_scales;
    const int of_kind = scales ? lane : lane - of_scales;
    const int lanes = scales ? Item::kScaleLanes : max(Item::kZeroLanes, 1);
    extra_bytes_ = scales ? Unit::kScaleBytes : Unit::kZeroBytes;
    extra_unit_ = of_kind / lanes;
    extras_start_ = (scales ? static_cast<const char*>(w.scales)
                            : reinterpret_cast<const char*>(w.zero_points)) +
                    of_kind % lanes * 16 + extra_unit_ * extra_bytes_;
    FindTile();
  }
  // The next item, where there is one, into the slot at `slot`; and the end of its group.
  __device__ void Fill(uint32_t slot) {
    if (left_ > 0) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        if (u < left_) CopyCodes(slot + u * Unit::kCodeBytes, u);
      }
      if (Item::kExtraLanes > 0 && lane_ < Item::kExtraLanes && extra_unit_ < left_) {
        CopyAsync16Bytes(slot + Item::kScalesAt + lane_ * 16, extras_);
      }
      codes_ += kUnits * kUnitStep;
      if constexpr (Item::kExtraLanes > 0) extras_ += kUnits * extra_bytes_;
      left_ -= kUnits;
      if (left_ <= 0) {
        tile_ += step_;
        FindTile();
      }
    }
    EndAsyncCopyGroup();
  }

 private:
  // Bytes from a unit's codes to the next one's: those of FP8 are a piece of each row.
  static constexpr int kUnitStep = Unit::kBoxed ? kUnitInputs : Unit::kCodeBytes;

  __device__ void CopyCodes(uint32_t to, int32_t units) const {
    const char* from = codes_ + static_cast<int64_t>(units) * kUnitStep;
    if constexpr (Unit::kBoxed) {
      // Rows 4 i + lane / 8, in the swizzle of 128 bytes.
      to += lane_ / 8 * 128 + ((lane_ % 8) ^ (lane_ / 8)) * 16;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        CopyAsync16Bytes((to + i * 512) ^ (i % 2 * 64),
                         from + static_cast<int64_t>(i * 4) * w_.units * kUnitInputs);
      }
    } else {
#pragma unroll
      for (int piece = 0; piece < Item::kPieces; ++piece) {
        CopyAsync16Bytes(to + lane_ * 16 + piece * 512, from + piece * 512);
      }
    }
  }
  __device__ void FindTile() {
    left_ = tile_ * kUnitRows < w_.n ? chain_.count : 0;
    const int64_t unit = static_cast<int64_t>(tile_) * w_.units;
    codes_ = static_cast<const char*>(w_.codes) + unit * Unit::kCodeBytes +
             static_cast<int64_t>(chain_.first) * kUnitStep;
    if constexpr (Unit::kBoxed) {
      codes_ += static_cast<int64_t>(lane_ / 8) * w_.units * kUnitInputs + lane_ % 8 * 16;
    } else {
      codes_ += lane_ * 16;
    }
    extras_ = extras_start_ + (unit + chain_.first) * extra_bytes_;
  }

  const WeightView& w_;
  const ChainUnits& chain_;
  const int lane_;
  int32_t tile_;
  const int32_t step_;
  int32_t left_ = 0;  // units of the tile
  int32_t extra_bytes_;
  int32_t extra_unit_;  // of an item, whose scales or zero points the lane copies
  const char* extras_start_;
  const char* codes_ = nullptr;
  const char* extras_ = nullptr;
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_CHAIN_STREAM_CUH_
