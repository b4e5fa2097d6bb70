// Units whose multiplications of 16 inputs take 16 in a row, as wgmma takes them where x lies as it
// comes (gemm_wgmma_cluster.cuh). A multiplication adds all of its products at once, so that the
// places of inputs among the 16 are free, and those of x with them.
//
// Of 32 inputs the lanes t = lane % 4 of a row hold 8t to 8t + 7 each: the first 16 are those of
// lanes 0 and 1, the others of 2 and 3. So lane t takes half of the words of lanes t % 2 and
// t % 2 + 2, the first four inputs for t < 2, else the last, and of x 8 bytes of each 16 inputs:
//
//   lane        0               1               2              3
//   its word    0 ... 7         8 ... 15        16 ... 23      24 ... 31
//   takes       0..3, 16..19    8..11, 24..27   4..7, 20..23   12..15, 28..31
//
// Twice the loads of codes and of x from shared memory, where quad_units.cuh takes four times those
// of codes.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_HALF_WORDS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_HALF_WORDS_CUH_

#include "kernels/cuda/device/ring_units.cuh"

namespace nibble::cuda {

// x of what a lane takes.
struct HalfWordInputs {
  __device__ static int Offset(int lane) { return lane % 2 * 16 + lane % 4 / 2 * 8; }
  template <class Load16, class Load8>
  __device__ static uint4 Part(Load16, Load8 load8, int i) {
    const uint2 first = load8(i * 64);
    const uint2 second = load8(i * 64 + 32);
    return make_uint4(first.x, first.y, second.x, second.y);
  }
};

// Unit: of 4-bit codes, of ring_units.cuh. `words` are those of lane t % 2, `others` of t % 2 + 2.
template <class Unit>
struct HalfWordUnit : Unit {
  using Inputs = HalfWordInputs;
  uint32_t select;  // of permutations: the lane's half of words; set before Load
  uint4 others[2];

  __device__ static int CodesOffset(int lane) { return lane / 4 * 64 + lane % 2 * 16; }
  __device__ void Load(uint32_t codes, uint32_t scale_bytes, uint32_t zero_bytes) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      this->words[half] = LoadShared16Bytes(codes + half * 512);
      others[half] = LoadShared16Bytes(codes + half * 512 + 32);
    }
    this->LoadScales(scale_bytes, zero_bytes);
  }
};

// Pairs 0 and 1 of a word of INT4 lie in bytes 0 and 2, pairs 2 and 3 in the others (Int4Words): a
// permutation puts together a word of both halves.
template <class Unit>
struct HalfWordInt4Unit : HalfWordUnit<Unit> {
  __device__ static uint32_t Select(int lane) { return lane % 4 < 2 ? 0x6240u : 0x7351u; }
  __device__ void Load(uint32_t codes, uint32_t scale_bytes, uint32_t zero_bytes) {
    HalfWordUnit<Unit>::Load(codes, scale_bytes, zero_bytes);
    const uint32_t select = this->select;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint4& word = this->words[half];
      const uint4& other = this->others[half];
      word = make_uint4(__byte_perm(word.x, other.x, select), __byte_perm(word.y, other.y, select),
                        __byte_perm(word.z, other.z, select), __byte_perm(word.w, other.w, select));
    }
  }
};

// Byte p of a word is pair p: a lane looks up those of its half. Only of the table of pitch 256.
template <class Unit>
struct HalfWordTableUnit : HalfWordUnit<Unit> {
  static_assert(Unit::kTableBytes == 256 * 256);

  __device__ static uint32_t Select(int lane) { return 0x5504u + lane % 4 / 2 * 0x20u; }
  __device__ void Decode(const WeightView&, const uint32_t* table, int i, uint32_t (&low)[4],
                         uint32_t (&high)[4]) const {
    const uint4& word = this->words[i / 2];
    const uint4& other = this->others[i / 2];
    const bool second = i % 2 != 0;
    Lookup(table, second ? word.z : word.x, low[0], low[1]);
    Lookup(table, second ? word.w : word.y, high[0], high[1]);
    Lookup(table, second ? other.z : other.x, low[2], low[3]);
    Lookup(table, second ? other.w : other.y, high[2], high[3]);
  }

 private:
  __device__ void Lookup(const uint32_t* table, uint32_t word, uint32_t& first,
                         uint32_t& second) const {
    const uint32_t lane_bytes = threadIdx.x % 32 * 4;
    const char* base = reinterpret_cast<const char*>(table);
    const uint32_t select = this->select;
    first = *reinterpret_cast<const uint32_t*>(base + __byte_perm(word, lane_bytes, select));
    second =
        *reinterpret_cast<const uint32_t*>(base + __byte_perm(word, lane_bytes, select + 0x10u));
  }
};

template <class Unit>
inline constexpr bool kTakesHalfWords = false;
template <class Unit>
inline constexpr bool kTakesHalfWords<HalfWordInt4Unit<Unit>> = true;
template <class Unit>
inline constexpr bool kTakesHalfWords<HalfWordTableUnit<Unit>> = true;

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_HALF_WORDS_CUH_
