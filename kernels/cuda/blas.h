// cuBLASLt, opened at run time: y = x W^T of dense 16-bit matrices, or of E4M3 codes with scales,
// with binary32 sums.
#ifndef NIBBLE_KERNELS_CUDA_BLAS_H_
#define NIBBLE_KERNELS_CUDA_BLAS_H_

#include <cstdint>
#include <memory>

#include <cuda_runtime.h>

#include "nibble/status.h"
#include "nibble/tensor.h"

namespace nibble::cuda {

// Scales of E4M3 codes, binary32.
enum class BlasScales : uint8_t {
  kNone,
  kTensor,  // one of x, one of w; null is 1
  kRows,    // of x [m], of w [n]
  kBlocks,  // of x [ceil(k / 128)][m], of w [ceil(n / 128)][ceil(k / 128), rounded up to 4]
};

// Row-major; strides in elements, pointers and row starts at multiples of 16 bytes.
struct BlasProblem {
  DType input = DType::kBF16;  // of x and w: BF16, F16, or F8_E4M3 with scales
  DType output = DType::kF32;  // of y: F32, or `input`; of codes BF16 or F16
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t x_stride = 0;
  int64_t w_stride = 0;
  int64_t y_stride = 0;
  bool accumulate = false;  // y += instead of y =
  BlasScales scales = BlasScales::kNone;
  // Scratch memory of RunScaled. K is split, in fixed parts, where there is no other algorithm.
  uint64_t workspace_bytes = 0;

  auto operator<=>(const BlasProblem&) const = default;
};

struct BlasOptions {
  // Scratch memory that Run needs, aligned to 256 bytes.
  uint64_t workspace_bytes = uint64_t{1} << 20;
  // Whether K may be split and partial sums reduced. Without it a row's sums are one block's.
  bool allow_split_k = false;
};

// Thread safe. The algorithm of each problem is chosen once, so that repeats give the same bits.
class Blas {
 public:
  virtual ~Blas() = default;
  // x [m, k], w [n, k], y [m, n].
  virtual Status Run(const BlasProblem& problem, const void* x, const void* w, void* y,
                     void* workspace, cudaStream_t stream) = 0;
  // Whether the library has an algorithm for the problem. Run fails where it has none.
  virtual StatusOr<bool> Has(const BlasProblem& problem) = 0;
  // As Run, for codes; problem.scales is not kNone. kBlocks asks for an m that is a multiple of 4.
  virtual Status RunScaled(const BlasProblem& problem, const void* x, const float* x_scales,
                           const void* w, const float* w_scales, void* y, void* workspace,
                           cudaStream_t stream) = 0;
};

// For the current device. kFailedPrecondition where the library cannot be opened.
StatusOr<std::unique_ptr<Blas>> OpenBlas(const BlasOptions& options = {});

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_BLAS_H_
