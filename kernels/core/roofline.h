// How long a CUDA matmul takes on a chip that was not measured: a pure function of the problem, the
// kernel and the chip's two numbers, bandwidth and tensor peak.
#ifndef NIBBLE_KERNELS_CORE_ROOFLINE_H_
#define NIBBLE_KERNELS_CORE_ROOFLINE_H_

#include <string_view>

#include "nibble/selector.h"

namespace nibble::core {

// Microseconds of the matmul by `kernel`, which fits it; 0 where the device's bandwidth or tensor
// peak is not known, or there are no rows. The constants are of H200s; roofline.cc says which are
// only derived.
double PredictMatmulMicroseconds(const Problem& problem, std::string_view kernel,
                                 const DeviceInfo& device);

// Whether the device is like the one that the selector's table was measured on.
bool IsMeasuredChip(const DeviceInfo& device);

// The tensor peak of that chip where `device` is one by its name, 0 of others.
double KnownTensorFlops(const DeviceInfo& device);

// Rows are told apart up to steps of the kernels' tiles, and past 4096 not at all: the last number
// of rows of the step that `m` is in, the largest int64 for the last.
int64_t EndOfRowsStep(int64_t m);

// The rows that the choice for a step is made by.
int64_t RowsOfStep(int64_t m);

}  // namespace nibble::core

#endif  // NIBBLE_KERNELS_CORE_ROOFLINE_H_
