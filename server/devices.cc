#include "server/devices.h"

#include <algorithm>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nibble/status.h"

namespace nibble::server {

absl::StatusOr<std::vector<std::unique_ptr<Device>>> OpenDevices(const Config& config) {
  if (config.backend == "cuda") {
    return absl::FailedPreconditionError(
        "--backend: expected a build with the CUDA backend for 'cuda'; this one has the CPU "
        "backend "
        "alone");
  }
  CpuOptions options;
  options.devices = config.cpu_devices;
  options.threads = config.cpu_threads;
  options.memory_bytes = config.cpu_memory_bytes;
  NIBBLE_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Device>> devices, CreateCpuDevices(options));
  if (config.device.empty()) return devices;

  std::vector<std::string> known;
  for (const auto& device : devices) known.push_back(device->info().id);
  for (const std::string& wanted : config.device) {
    if (std::find(known.begin(), known.end(), wanted) == known.end()) {
      return absl::InvalidArgumentError(fmt::format("--device: expected some of {}; received '{}'",
                                                    fmt::join(known, ", "), wanted));
    }
  }
  std::erase_if(devices, [&](const std::unique_ptr<Device>& device) {
    return std::find(config.device.begin(), config.device.end(), device->info().id) ==
           config.device.end();
  });
  return devices;
}

}  // namespace nibble::server
