#include "kernels/cuda/context.h"

#include <utility>

#include "fmt/format.h"

namespace nibble::cuda {
namespace {

// Errors after which the process can use the device no more.
bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorExternalDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorCudartUnloading:
    case cudaErrorSystemNotReady:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

}  // namespace

DeviceGuard::DeviceGuard(int ordinal) {
  if (cudaGetDevice(&previous_) != cudaSuccess) previous_ = 0;
  cudaSetDevice(ordinal);
}

DeviceGuard::~DeviceGuard() { cudaSetDevice(previous_); }

Status Context::Check(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // an error that is not sticky must not be met again by the next check
  const std::string message = fmt::format("{} of {}: {} ({})", what, id_, cudaGetErrorName(error),
                                          cudaGetErrorString(error));
  if (IsSticky(error)) {
    const std::lock_guard lock(mutex_);
    if (health_.ok()) health_ = absl::UnavailableError(message);
    return health_;
  }
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

Status Context::health() const {
  const std::lock_guard lock(mutex_);
  return health_;
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  const DeviceGuard guard(context_->ordinal());
  // Fails only on a device that is lost; its memory is gone with it.
  (void)context_->Check(cudaFree(data_), "cudaFree");
  context_->budget()->Give(size_);
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : context_(std::move(other.context_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

StatusOr<DeviceMemory> DeviceMemory::Create(std::shared_ptr<Context> context, uint64_t bytes,
                                            core::BudgetReservation* reservation,
                                            std::string_view purpose) {
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t size,
                          core::TakeAligned(*context->budget(), bytes, reservation, purpose));
  const DeviceGuard guard(context->ordinal());
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, size);
  if (error != cudaSuccess) {
    context->budget()->Give(size);
    return context->Check(error, fmt::format("{} bytes for {}", size, purpose));
  }
  DeviceMemory memory;
  memory.context_ = std::move(context);
  memory.data_ = static_cast<char*>(data);
  memory.size_ = size;
  return memory;
}

}  // namespace nibble::cuda
