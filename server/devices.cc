#include "server/devices.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nibble/cuda_module.h"
#include "nibble/status.h"
#include "server/log/log.h"

namespace nibble::server {

namespace {

using Devices = std::vector<std::unique_ptr<Device>>;

StatusOr<Devices> OpenCpu(const Config& config) {
  CpuOptions options;
  options.devices = config.cpu_devices;
  options.threads = config.cpu_threads;
  options.memory_bytes = config.cpu_memory_bytes;
  return CreateCpuDevices(options);
}

// Whether --device names a device of `kind`, "cpu:" or "cuda:".
bool Names(const Config& config, std::string_view kind) {
  return std::any_of(config.device.begin(), config.device.end(),
                     [&](const std::string& id) { return id.starts_with(kind); });
}

StatusOr<Devices> OpenBackend(const Config& config) {
  // --device decides where --backend leaves it open.
  const bool automatic = config.backend == "auto" && !Names(config, "cuda:");
  if (config.backend == "cpu" || (automatic && Names(config, "cpu:"))) return OpenCpu(config);
  StatusOr<Devices> devices = OpenCudaDevices();
  if (devices.ok() || !automatic) return devices;
  log::Info("backend", {{"chosen", "cpu"}, {"reason", MessageOf(devices.status())}});
  return OpenCpu(config);
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Device>>> OpenDevices(const Config& config) {
  NIBBLE_ASSIGN_OR_RETURN(Devices devices, OpenBackend(config));
  if (config.batch_invariant) {
    for (const auto& device : devices) device->SetBatchInvariant();
  }
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
