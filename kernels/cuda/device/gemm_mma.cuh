// Matmul for more rows of x than the GEMV takes, on the tensor cores of compute capability 8.0 and
// up: decoded weights are the 16-row operand of mma.m16n8k16, rows of x its 8 columns.
//
// A block takes kRows outputs, kColumns rows of x and a range of K at a time. All its threads copy:
// a step (64 inputs) of the codes, their scales and zero points, and of x, kStages - 1 steps ahead
// of the one that is multiplied; the copies run on over the ends of tiles. Each warp multiplies 32
// outputs with its rows of x.
//
//   device memory   x, codes, scales, zero points
//        | cp.async, 16 bytes each
//   ring            [stage]: x [kColumns][64] | codes [tile] | scales [tile] | zero points [tile]
//        |          x: 16 bytes of row r at 16 * (their place ^ r % 2 * 4): no bank conflicts
//   registers       decode -> mma -> sums of a scale's inputs * scale -> totals in binary32
//        |
//   y               + bias, 16 bytes a store; or, of a tile that blocks share, to memory:
//                   AddSharesKernel adds the shares in the order of K.
//
// A lane's 16 bytes of x are 8 inputs in a row, which a packed word holds for its row: x is read as
// it comes. How work is divided and shared is that of the wgmma kernel (WgmmaWork).
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMM_MMA_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMM_MMA_CUH_

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/eight.cuh"
#include "kernels/cuda/device/gemm_wgmma.cuh"
#include "kernels/cuda/device/mma_units.cuh"

namespace nibble::cuda {

// What a block may have on every device: compute capability 8.9 lends 99 KB, 8.0 163.
inline constexpr int kMmaSharedBytes = 99 * 1024;
inline constexpr int kMmaMaxStages = 8;

struct MmaArgs : WgmmaArgs {
  const uint16_t* x = nullptr;  // [m, units * 128], rows at multiples of 16 bytes
  int64_t x_stride = 0;
};

// kColumns: rows of x of a block, shared among kWarpsOfX warps. kWarpsOfOutputs: warps side by side
// along the outputs.
template <int kColumns_, int kWarpsOfOutputs_, int kWarpsOfX>
struct MmaShape {
  static constexpr int kColumns = kColumns_;
  static constexpr int kWarpsOfOutputs = kWarpsOfOutputs_;
  static constexpr int kTilesOfWarp = 2;
  static constexpr int kTiles = kWarpsOfOutputs * kTilesOfWarp;
  static constexpr int kRows = kTiles * kUnitRows;
  static constexpr int kColumnsOfWarp = kColumns / kWarpsOfX;
  static constexpr int kWarps = kWarpsOfOutputs * kWarpsOfX;
  static constexpr int kThreads = kWarps * 32;
  // For AddSharesKernel: a thread for each tile and lane, 4 of its sums for each 8 rows of x.
  static constexpr int kMultiplying = kTiles * 32;
  static constexpr int kVectors = kColumns / 8;
};

// Where the parts of a stage lie, in bytes.
template <class Unit, class Shape>
struct MmaStage {
  static constexpr int kXRowBytes = kHalfInputs * 2;
  static constexpr int kCodesAt = Shape::kColumns * kXRowBytes;
  static constexpr int kScalesAt = kCodesAt + Shape::kTiles * Unit::kCodeBytes;
  static constexpr int kZerosAt = kScalesAt + Shape::kTiles * Unit::kScaleBytes;
  static constexpr int kBytes = kZerosAt + Shape::kTiles * Unit::kZeroBytes;
  static_assert(kBytes % 128 == 0);
  // Of y, between registers and memory: 8 rows of x and 32 outputs of each warp.
  static constexpr int kStagedBytes = 8 * Shape::kTilesOfWarp * kUnitRows * 2;
  static constexpr int kBefore = Unit::kTableBytes + Shape::kWarps * kStagedBytes;
  static constexpr int kFitting = (kMmaSharedBytes - kBefore) / kBytes;
  static constexpr int kStages = kFitting < kMmaMaxStages ? kFitting : kMmaMaxStages;
  static_assert(kStages >= 2, "one is filled while another is read");
  static constexpr int kSharedBytes = kBefore + kStages * kBytes;
};

// What a block copies, step after step over its tiles, and from where.
template <class Unit, class Shape>
class MmaSource {
 public:
  __device__ MmaSource(const WeightView& w, const MmaArgs& args) : work_(args, w.units) {}
  // Asks for the next step's x and weights, by all threads; nothing after the last.
  __device__ void CopyNext(const WeightView& w, const MmaArgs& args, uint32_t stage) {
    using Stage = MmaStage<Unit, Shape>;
    if (step_ == end_) {
      if (!work_.Next(args, w.units)) return;
      Start(w, args);
    }
    const int row = static_cast<int>(threadIdx.x) / 8;
    const int place = static_cast<int>(threadIdx.x) % 8 ^ row % 2 * 4;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (kAll || row < Shape::kColumns) {
        CopyAsync(stage + (row + i * kRowsAtOnce) * Stage::kXRowBytes + place * 16,
                  x_[i] + static_cast<int64_t>(step_) * kHalfInputs);
      }
    }
    weights_.Copy(w, step_,
                  {stage + Stage::kCodesAt, stage + Stage::kScalesAt, stage + Stage::kZerosAt});
    ++step_;
  }

 private:
  static constexpr int kRowsAtOnce = Shape::kThreads / 8;
  static constexpr bool kAll = Shape::kColumns % kRowsAtOnce == 0;
  static constexpr int kCount = (Shape::kColumns + kRowsAtOnce - 1) / kRowsAtOnce;

  __device__ void Start(const WeightView& w, const MmaArgs& args) {
    step_ = work_.first * 2;
    end_ = work_.end * 2;
    const int32_t first = work_.tile % args.column_tiles * Shape::kColumns;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      // A row past the last one repeats it: its sums meet no other row's and are not stored.
      const int32_t row =
          min(first + static_cast<int32_t>(threadIdx.x) / 8 + i * kRowsAtOnce, args.m - 1);
      x_[i] = args.x + row * args.x_stride + threadIdx.x % 8 * 8;
    }
    weights_.Start(w, work_.tile / args.column_tiles * Shape::kTiles);
  }

  WgmmaWork<Asking::kWarp> work_;
  int32_t step_ = 0;
  int32_t end_ = 0;
  const uint16_t* x_[kCount];
  typename Unit::template Source<Shape::kTiles, Shape::kThreads> weights_;
};

// totals[tile] += scale * (16 outputs x the warp's rows of x) over the step's inputs. x_at: of the
// lane's 16 bytes of the first 32 inputs.
template <class Pairs, class Unit, class Shape>
__device__ inline void MultiplyStep(
    const WeightView& w, const uint32_t* table, uint32_t x_at,
    const Unit (&units)[Shape::kTilesOfWarp],
    float (&totals)[Shape::kTilesOfWarp][Shape::kColumnsOfWarp / 2]) {
  constexpr int kTiles = Shape::kTilesOfWarp;
  constexpr int kColumns = Shape::kColumnsOfWarp / 8;
  constexpr int kBlocks = 2 / Unit::kScalesPerHalf;  // of 32 inputs, of a scale
#pragma unroll
  for (int group = 0; group < Unit::kScalesPerHalf; ++group) {
    float sums[kColumns][kTiles][4] = {};
#pragma unroll
    for (int i = group * kBlocks; i < (group + 1) * kBlocks; ++i) {
      uint32_t low[kTiles][4];
      uint32_t high[kTiles][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        units[tile].Decode(table, i, low[tile], high[tile]);
      }
      // Two columns at a time: four sums that do not depend on one another.
#pragma unroll
      for (int column = 0; column < kColumns; column += 2) {
        uint4 b[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          b[j] = LoadShared16Bytes((x_at ^ i * 64) + (column + j) * 8 * kHalfInputs * 2);
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            Pairs::Mma(sums[column + j][tile], low[tile][0], high[tile][0], low[tile][1],
                       high[tile][1], b[j].x, b[j].y);
          }
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            Pairs::Mma(sums[column + j][tile], low[tile][2], high[tile][2], low[tile][3],
                       high[tile][3], b[j].z, b[j].w);
          }
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float2 scale = units[tile].Scale(w, group);
#pragma unroll
      for (int i = 0; i < kColumns * 4; ++i) {
        totals[tile][i] =
            __fmaf_rn(i % 4 < 2 ? scale.x : scale.y, sums[i / 4][tile][i % 4], totals[tile][i]);
      }
    }
  }
}

// The transpose of a matrix of 8 x 8 16-bit elements: lane l holds elements 2 (l % 4) and the next
// of row l / 4.
__device__ inline uint32_t Transposed(uint32_t pair) {
  uint32_t to;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(pair));
  return to;
}

// A warp's totals to y of 16-bit Out, where every row of y and its length are multiples of 16
// bytes: 8 rows of x at a time through `staging`, 64 bytes each, 16 bytes of row r at 16 * (their
// place ^ r / 2 % 4). n: the warp's first output. row: its first row of x.
template <class Out, class Shape>
__device__ inline void StoreStaged(
    const WeightView& w, const MmaArgs& args,
    const float (&totals)[Shape::kTilesOfWarp][Shape::kColumnsOfWarp / 2], int32_t n, int32_t row,
    uint32_t staging) {
  const int lane = threadIdx.x % 32;
  const int of_x = lane / 4;
  const int swizzle = of_x / 2 % 4;
  const int32_t first = n + lane / 4;
  const OutputFactors factors[2][2] = {
      {OutputFactors(w, args, first), OutputFactors(w, args, first + 8)},
      {OutputFactors(w, args, first + 16), OutputFactors(w, args, first + 24)}};
  const int32_t output = n + lane % 4 * 8;
#pragma unroll
  for (int column = 0; column < Shape::kColumnsOfWarp / 8; ++column) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // of 8 outputs
      const float* sums = totals[i / 2] + column * 4 + i % 2 * 2;
      const OutputFactors& of = factors[i / 2][i % 2];
      const uint32_t pair = RoundPair(of.Finish(sums[0]), of.Finish(sums[1]), Out{});
      StoreShared4Bytes(staging + of_x * 64 + (i ^ swizzle) * 16 + lane % 4 * 4, Transposed(pair));
    }
    __syncwarp();
    const uint4 values = LoadShared16Bytes(staging + of_x * 64 + (lane % 4 ^ swizzle) * 16);
    __syncwarp();
    const int32_t y_row = row + column * 8 + of_x;
    if (y_row < args.m && output < w.n) {
      Out* to = static_cast<Out*>(args.y) + y_row * args.y_stride + output;
      *reinterpret_cast<uint4*>(to) = values;
    }
  }
}

template <class Shape>
__device__ inline void StoreMmaTotals(
    const WeightView& w, const MmaArgs& args,
    const float (&totals)[Shape::kTilesOfWarp][Shape::kColumnsOfWarp / 2], int32_t n, int32_t row,
    uint32_t staging) {
  const bool bf16 = args.y_type == Element::kBF16;
  if (args.vector_y) {
    if (bf16) StoreStaged<__nv_bfloat16, Shape>(w, args, totals, n, row, staging);
    if (!bf16) StoreStaged<__half, Shape>(w, args, totals, n, row, staging);
    return;
  }
  const int lane = threadIdx.x % 32;
  const int32_t own_row = row + lane % 4 * 2;
  constexpr int kColumns = Shape::kColumnsOfWarp;
#pragma unroll
  for (int tile = 0; tile < Shape::kTilesOfWarp; ++tile) {
    const int32_t own_n = n + tile * kUnitRows + lane / 4;
    if (args.y_type == Element::kF32) {
      StoreElements<float, kColumns>(w, args, totals[tile], own_n, own_row);
    } else if (bf16) {
      StoreElements<__nv_bfloat16, kColumns>(w, args, totals[tile], own_n, own_row);
    } else {
      StoreElements<__half, kColumns>(w, args, totals[tile], own_n, own_row);
    }
  }
}

template <class Pairs, class Unit, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    MmaKernel(const __grid_constant__ WeightView w, const __grid_constant__ MmaArgs args) {
  using Stage = MmaStage<Unit, Shape>;
  constexpr int kStages = Stage::kStages;
  constexpr int kTiles = Shape::kTilesOfWarp;
  extern __shared__ __align__(128) uint32_t shared_words[];
  const int lane = threadIdx.x % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int of_outputs = warp % Shape::kWarpsOfOutputs;
  const int of_x = warp / Shape::kWarpsOfOutputs;
  const uint32_t staging =
      SharedAddress(shared_words) + Unit::kTableBytes + warp * Stage::kStagedBytes;
  const uint32_t ring = Kept(SharedAddress(shared_words) + Stage::kBefore);
  LaunchDependents();
  WaitForDependencies();

  MmaSource<Unit, Shape> source(w, args);
  const auto copy = [&](int slot) {
    source.CopyNext(w, args, ring + slot * Stage::kBytes);
    CommitCopies();
  };
#pragma unroll 1
  for (int slot = 0; slot < kStages - 1; ++slot) copy(slot);
  // Seen by all after the first barrier.
  Unit::FillTable(w, shared_words, Shape::kThreads);

  const uint32_t x_at = (of_x * Shape::kColumnsOfWarp + lane / 4) * Stage::kXRowBytes +
                        lane / 4 % 2 * 64 + lane % 4 * 16;
  int slot = 0;
  int fill = kStages - 1;
  WgmmaWork<Asking::kWarp> work(args, w.units);
  while (work.Next(args, w.units)) {
    const int32_t n =
        work.tile / args.column_tiles * Shape::kRows + of_outputs * kTiles * kUnitRows;
    Unit units[kTiles];
    float totals[kTiles][Shape::kColumnsOfWarp / 2];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      units[tile].Start(w, n + tile * kUnitRows);
#pragma unroll
      for (int i = 0; i < Shape::kColumnsOfWarp / 2; ++i) totals[tile][i] = 0.0f;
    }
#pragma unroll 1
    for (int32_t step = work.first * 2; step < work.end * 2; ++step) {
      // This step's copies are there, and the step before is done with its stage.
      WaitForCopies<kStages - 2>();
      __syncthreads();
      copy(fill);
      fill = fill + 1 == kStages ? 0 : fill + 1;
      const uint32_t stage = ring + slot * Stage::kBytes;
      slot = slot + 1 == kStages ? 0 : slot + 1;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int of_block = of_outputs * kTiles + tile;
        units[tile].Load(w, step,
                         {stage + Stage::kCodesAt + of_block * Unit::kCodeBytes,
                          stage + Stage::kScalesAt + of_block * Unit::kScaleBytes,
                          stage + Stage::kZerosAt + of_block * Unit::kZeroBytes});
      }
      MultiplyStep<Pairs, Unit, Shape>(w, shared_words, stage + x_at, units, totals);
    }
    if (work.end - work.first < w.units) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < Shape::kColumnsOfWarp / 8; ++i) {
          const float(&from)[Shape::kColumnsOfWarp / 2] = totals[tile];
          __stcg(ShareOf<Shape>(args, blockIdx.x, work.first == 0,
                                of_x * Shape::kColumnsOfWarp / 8 + i,
                                (of_outputs * kTiles + tile) * 32 + lane),
                 make_float4(from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]));
        }
      }
      continue;
    }
    StoreMmaTotals<Shape>(
        w, args, totals, n,
        work.tile % args.column_tiles * Shape::kColumns + of_x * Shape::kColumnsOfWarp, staging);
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMM_MMA_CUH_
