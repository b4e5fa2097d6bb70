// x in shared memory as the operand of MultiplyUnits.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_SHARED_FRAGMENTS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_SHARED_FRAGMENTS_CUH_

#include "kernels/cuda/device/async_copy.cuh"

namespace nibble::cuda {

// Rows of x in shared memory lie this far apart modulo 128 bytes: 8 lanes of a load touch two rows.
inline constexpr int kSharedRowSkew = 64;

template <class Inputs, int kColumns>
struct SharedFragments {
  uint32_t rows_at[kColumns];
  __device__ uint4 Part(int column, int i) const {
    return Inputs::Part([&](int at) { return LoadShared16Bytes(rows_at[column] + at); },
                        [&](int at) { return LoadShared8Bytes(rows_at[column] + at); }, i);
  }
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_SHARED_FRAGMENTS_CUH_
