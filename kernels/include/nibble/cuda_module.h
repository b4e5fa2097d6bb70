// The CUDA backend is a shared module, opened at run time: a program that links this library
// depends on neither CUDA's runtime nor its driver.
#ifndef NIBBLE_CUDA_MODULE_H_
#define NIBBLE_CUDA_MODULE_H_

#include <memory>
#include <string>
#include <vector>

#include "nibble/backend.h"
#include "nibble/status.h"

namespace nibble {

// Opens the module libnibble_cuda.so and every usable GPU (compute capability 8.0 or above, in the
// order of the CUDA runtime, so that CUDA_VISIBLE_DEVICES applies).
//
// The module is looked for at `module_path`; if that is empty, at $NIBBLE_CUDA_MODULE; if that is
// not set, beside the executable and in ../lib from there. It stays open for the rest of the
// process.
//
// kFailedPrecondition where there is no module, it belongs to another build of this library, or the
// machine has no driver, no usable GPU or no cuBLASLt; the message says which.
StatusOr<std::vector<std::unique_ptr<Device>>> OpenCudaDevices(const std::string& module_path = "");

}  // namespace nibble

#endif  // NIBBLE_CUDA_MODULE_H_
