#include <algorithm>
#include <limits>
#include <thread>

#include "fmt/format.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/host.h"
#include "kernels/cpu/matmul.h"

namespace nibble {
namespace {

Status CheckRange(std::string_view field, int value, int low, int high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{}: expected {} to {}; received {}", field, low, high, value));
}

StatusOr<std::unique_ptr<Device>> CreateDevice(DeviceInfo info, bool measure_bandwidth) {
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<cpu::ThreadPool> pool,
                          cpu::ThreadPool::Create(info.cores));
  std::vector<hwy::AlignedFreeUniquePtr<float[]>> scratch;
  for (int thread = 0; thread < info.cores; ++thread) {
    scratch.push_back(hwy::AllocateAligned<float>(cpu::kPanelScratchFloats));
    if (scratch.back() == nullptr) {
      return absl::ResourceExhaustedError(
          fmt::format("{}: the system refused scratch for {} threads", info.id, info.cores));
    }
  }
  if (measure_bandwidth) info.peak_bandwidth_bytes_per_second = cpu::MeasureReadBandwidth(*pool);
  return std::make_unique<cpu::CpuDevice>(std::move(info), std::move(pool), std::move(scratch));
}

}  // namespace

StatusOr<std::vector<std::unique_ptr<Device>>> CreateCpuDevices(const CpuOptions& options) {
  constexpr int kMaxDevices = 64;
  constexpr int kMaxThreads = 1024;
  NIBBLE_RETURN_IF_ERROR(CheckRange("devices", options.devices, 1, kMaxDevices));
  NIBBLE_RETURN_IF_ERROR(CheckRange("threads", options.threads, 0, kMaxThreads));

  DeviceInfo info;
  info.name = cpu::ProcessorName();
  info.kind = BackendKind::kCpu;
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  info.cores =
      options.threads > 0 ? options.threads : std::clamp(cores / options.devices, 1, kMaxThreads);
  const auto devices = static_cast<uint64_t>(options.devices);
  info.memory_bytes =
      options.memory_bytes > 0 ? options.memory_bytes : cpu::HostMemoryBytes() / 5 * 4 / devices;
  info.zero_copy_input_bytes = std::numeric_limits<uint64_t>::max();
  info.zero_copy_output_bytes = std::numeric_limits<uint64_t>::max();
  info.batches_in_flight = 1;

  std::vector<std::unique_ptr<Device>> result;
  for (int index = 0; index < options.devices; ++index) {
    info.id = fmt::format("cpu:{}", index);
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                            CreateDevice(info, options.measure_bandwidth));
    result.push_back(std::move(device));
  }
  return result;
}

}  // namespace nibble
