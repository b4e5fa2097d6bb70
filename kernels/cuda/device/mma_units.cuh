// How the mma kernel brings half a unit (64 inputs) of each format to shared memory, and reads it
// there. Half a unit is a step of its pipeline.
//
// A Source<kTiles, kThreads> is what a thread copies of kTiles tiles of 16 outputs: Start chooses
// the tiles, Copy asks for a step's codes, scales and zero points. Load takes what a lane needs of
// one tile, Decode gives its fragments of 32 inputs: `low` of row g, `high` of row g + 8 (see
// weight_view.cuh).
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_MMA_UNITS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_MMA_UNITS_CUH_

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/decode.cuh"
#include "kernels/cuda/device/gemv_units.cuh"

namespace nibble::cuda {

inline constexpr int kHalfInputs = kUnitInputs / 2;

// Asynchronous copies of compute capability 8.0: of 16 bytes, both addresses multiples of 16; a
// thread waits for its own groups of them.
__device__ inline void CopyAsync(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to_shared), "l"(from)
               : "memory");
}
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most kPending committed groups are on their way.
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Where the parts of a step's weights lie in shared memory.
struct MmaPlaces {
  uint32_t codes;
  uint32_t scales;
  uint32_t zeros;
};

// The tile to read for `tile`: those past the last one repeat it, and are not stored.
__device__ inline int64_t StoredTile(const WeightView& w, int32_t tile) {
  return min(tile, (w.n - 1) / kUnitRows);
}

// Codes of 4 bits, with kScales scales for half a unit, and zero points or not.
template <int kScales, bool kZeroPoints>
struct MmaFourBits {
  static constexpr int kScalesPerHalf = kScales;
  static constexpr int kCodeBytes = 512;  // of a tile
  // Room for binary32; those of 16 bits take the front half.
  static constexpr int kScaleBytes = kScales * kUnitRows * 4;
  static constexpr int kZeroBytes = kZeroPoints ? kScales * kUnitRows : 0;
  uint4 words;
  uint2 scales[kScales];

  template <int kTiles, int kThreads>
  class Source {
   public:
    __device__ void Start(const WeightView& w, int32_t tile) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int piece = static_cast<int>(threadIdx.x) + i * kThreads;
        codes_[i] = static_cast<const char*>(w.codes) +
                    StoredTile(w, tile + piece / 32) * (w.units * 2) * kCodeBytes + piece % 32 * 16;
      }
      side_ = nullptr;
      const auto of_block = static_cast<int>(threadIdx.x) / kSides;
      const int piece = static_cast<int>(threadIdx.x) % kSides;
      if (of_block >= kTiles) return;
      const int64_t first = StoredTile(w, tile + of_block) * w.groups * kUnitRows;
      if (piece >= kPiecesOfScales) {
        const int of_zeros = piece - kPiecesOfScales;
        if (w.zero_points == nullptr) return;
        side_ = reinterpret_cast<const char*>(w.zero_points) + first + of_zeros * 16;
        side_bytes_ = kUnitRows;
        side_to_ = kTiles * kScaleBytes + of_block * kZeroBytes + of_zeros * 16;
        return;
      }
      const int scale_bytes = w.scale_type == Element::kF32 ? 4 : 2;
      if (piece * 16 >= kScales * kUnitRows * scale_bytes) return;
      side_ = static_cast<const char*>(w.scales) + first * scale_bytes + piece * 16;
      side_bytes_ = kUnitRows * scale_bytes;
      side_to_ = of_block * kScaleBytes + piece * 16;
    }
    __device__ void Copy(const WeightView& w, int32_t step, const MmaPlaces& to) const {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        CopyAsync(to.codes + (threadIdx.x + i * kThreads) * 16,
                  codes_[i] + static_cast<int64_t>(step) * kCodeBytes);
      }
      // Groups that fit units are 32, 64 or 128 inputs as they are stored.
      if (side_ == nullptr) return;
      const int32_t group = step * kHalfInputs >> w.group_shift;
      CopyAsync(to.scales + side_to_, side_ + static_cast<int64_t>(group) * side_bytes_);
    }

   private:
    static constexpr int kCount = kTiles * kCodeBytes / 16 / kThreads;
    static_assert(kCount * kThreads * 16 == kTiles * kCodeBytes);
    static constexpr int kPiecesOfScales = kScaleBytes / 16;
    static constexpr int kSides = kPiecesOfScales + kZeroBytes / 16;  // pieces of a tile
    static_assert(kTiles * kSides <= kThreads);
    const char* codes_[kCount];
    // This thread's piece of the scales or the zero points, of the first group; null: none.
    const char* side_;
    int32_t side_bytes_;  // from a group to the next
    uint32_t side_to_;    // its place from that of the scales on
  };

  __device__ void Start(const WeightView&, int32_t) {}
  __device__ float2 Scale(const WeightView& w, int i) const { return WidenScales(w, scales[i]); }

 protected:
  // `at`: of the warp's tile.
  __device__ void LoadWords(const WeightView& w, const MmaPlaces& at) {
    const int lane = threadIdx.x % 32;
    words = LoadShared16Bytes(at.codes + lane * 16);
    const bool f32 = w.scale_type == Element::kF32;
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      const uint32_t from = at.scales + (i * kUnitRows + lane / 4 * 2) * (f32 ? 4 : 2);
      scales[i] = {LoadShared4Bytes(from), f32 ? LoadShared4Bytes(from + 4) : 0};
    }
  }
};

// Scales of any type, zero points or none.
template <class Pairs, int kScales>
struct MmaInt4Unit : MmaFourBits<kScales, true> {
  static constexpr float kUnscale = Int4Words<Pairs>::kUnscale;
  static constexpr int kTableBytes = 0;
  uint32_t zeros[kScales];

  __device__ static void FillTable(const WeightView&, uint32_t*, int) {}
  __device__ void Load(const WeightView& w, int32_t, const MmaPlaces& at) {
    this->LoadWords(w, at);
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      zeros[i] = 0x0808u;
      if (w.zero_points != nullptr) {
        zeros[i] = LoadShared2Bytes(at.zeros + i * kUnitRows + threadIdx.x % 32 / 4 * 2);
      }
    }
  }
  __device__ void Decode(const uint32_t*, int i, uint32_t (&low)[4], uint32_t (&high)[4]) const {
    using Words = Int4Words<Pairs>;
    const uint32_t zero = zeros[i * kScales / 2];
    Words::Decode(i == 0 ? this->words.x : this->words.z, Words::template Zero<0>(zero), low);
    Words::Decode(i == 0 ? this->words.y : this->words.w, Words::template Zero<1>(zero), high);
  }
};

// The table of pairs of half the size leaves room for stages.
template <class Pairs>
struct MmaTableUnit : MmaFourBits<1, false> {
  using Direct = TableUnit<Pairs, 1, 128>;
  static constexpr float kUnscale = 1.0f;
  static constexpr int kTableBytes = Direct::kTableBytes;

  __device__ static void FillTable(const WeightView& w, uint32_t* table, int threads) {
    Direct::FillTable(w, table, threads);
  }
  __device__ void Load(const WeightView& w, int32_t, const MmaPlaces& at) {
    this->LoadWords(w, at);
  }
  __device__ void Decode(const uint32_t* table, int i, uint32_t (&low)[4],
                         uint32_t (&high)[4]) const {
    Direct::Lookup(table, i == 0 ? this->words.x : this->words.z, low);
    Direct::Lookup(table, i == 0 ? this->words.y : this->words.w, high);
  }
};

// Rows of 64 codes lie side by side; 16 bytes of row r at 16 * (their place ^ r / 2 % 2 * 2), so
// that the 8 bytes of half a warp's lanes meet in no bank. A scale covers whole units, and comes
// from memory: it is the same ones for many steps.
template <class Pairs>
struct MmaFp8Unit {
  static constexpr int kScalesPerHalf = 1;
  static constexpr float kUnscale = Fp8Words<Pairs>::kUnscale;
  static constexpr int kTableBytes = 0;
  static constexpr int kCodeBytes = kUnitRows * kHalfInputs;
  static constexpr int kScaleBytes = 0;
  static constexpr int kZeroBytes = 0;
  uint2 words[2][2];  // [row g, g + 8][32 inputs]
  float2 scale;
  int32_t scales_of[2];  // where the scales of the two rows begin

  __device__ static void FillTable(const WeightView&, uint32_t*, int) {}

  template <int kTiles, int kThreads>
  class Source {
   public:
    __device__ void Start(const WeightView& w, int32_t tile) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int row = (static_cast<int>(threadIdx.x) + i * kThreads) / 4;
        const int64_t n = StoredTile(w, tile + row / kUnitRows) * kUnitRows + row % kUnitRows;
        codes_[i] =
            static_cast<const char*>(w.codes) + n * (w.units * kUnitInputs) + threadIdx.x % 4 * 16;
      }
    }
    __device__ void Copy(const WeightView&, int32_t step, const MmaPlaces& to) const {
      const uint32_t row = threadIdx.x / 4;
      const uint32_t first =
          to.codes + row * kHalfInputs + (threadIdx.x % 4 ^ row / 2 % 2 * 2) * 16;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        CopyAsync(first + i * kThreads * 16, codes_[i] + static_cast<int64_t>(step) * kHalfInputs);
      }
    }

   private:
    static constexpr int kCount = kTiles * kCodeBytes / 16 / kThreads;
    static_assert(kCount * kThreads * 16 == kTiles * kCodeBytes && kThreads % 64 == 0);
    const char* codes_[kCount];
  };

  // Of the tile that begins with output n.
  __device__ void Start(const WeightView& w, int32_t n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t row = min(n + static_cast<int32_t>(threadIdx.x) % 32 / 4 + i * 8, w.n - 1);
      scales_of[i] = Divide(row, w.rows_per_scale, w.rows_shift) * w.groups;
    }
  }
  __device__ void Load(const WeightView& w, int32_t step, const MmaPlaces& at) {
    const auto* scales = static_cast<const float*>(w.scales);
    if (w.groups > 1) scales += Divide(step / 2 * kUnitInputs, w.group_size, w.group_shift);
    scale = {__ldg(scales + scales_of[0]), __ldg(scales + scales_of[1])};
    const int lane = threadIdx.x % 32;
    const uint32_t from = at.codes + lane / 4 * kHalfInputs + lane / 8 % 2 * 32 + lane % 4 * 8;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        words[row][i] = LoadShared8Bytes((from ^ i * 32) + row * 8 * kHalfInputs);
      }
    }
  }
  __device__ float2 Scale(const WeightView&, int) const { return scale; }
  // Inputs 1 and 2 of each four change places: x is then needed as it comes.
  __device__ static uint32_t Ordered(uint32_t word) { return __byte_perm(word, 0, 0x3120); }
  __device__ void Decode(const uint32_t*, int i, uint32_t (&low)[4], uint32_t (&high)[4]) const {
    DecodeFp8Words<Pairs>(Ordered(words[0][i].x), Ordered(words[0][i].y), low);
    DecodeFp8Words<Pairs>(Ordered(words[1][i].x), Ordered(words[1][i].y), high);
  }
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_MMA_UNITS_CUH_
