// The devices that a configuration asks for.
#ifndef NIBBLE_SERVER_DEVICES_H_
#define NIBBLE_SERVER_DEVICES_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "nibble/backend.h"
#include "server/config/config.h"

namespace nibble::server {

// Opens the devices of the configured backend and keeps those named by --device. kInvalidArgument
// for a device that does not exist, kFailedPrecondition for a backend that this machine does not
// have.
absl::StatusOr<std::vector<std::unique_ptr<Device>>> OpenDevices(const Config& config);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_DEVICES_H_
