// Which device each weight of a load goes to, and the memory taken for it beforehand.
#ifndef NIBBLE_SERVER_WEIGHT_STORE_PLACEMENT_H_
#define NIBBLE_SERVER_WEIGHT_STORE_PLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/weight_store/weight_store.h"

namespace nibble::server {

struct Placement {
  std::vector<size_t> device_of;  // of each planned weight, an index into the devices
  std::vector<uint64_t> bytes_of;
  // One a device, for all weights placed on it; null where none is.
  std::vector<std::unique_ptr<Device::Reservation>> reservations;
};

// Places every weight on the device named `device_id`, or, when that is empty, the largest weight
// first, each on the healthy device that has the most memory free after those before it. One
// `request_share`-th of each device's memory stays free; with 0 none needs to. The specs are valid.
// Not to be called twice at once for the same devices: between looking at the free memory and
// reserving it nobody else may reserve.
//   kInvalidArgument    no device of that name
//   kResourceExhausted  a weight does not fit; names it, with bytes needed and free
//   kUnavailable        no healthy device
absl::StatusOr<Placement> PlaceAndReserve(const std::vector<PlannedWeight>& planned,
                                          const std::vector<Device*>& devices,
                                          std::string_view device_id, uint64_t request_share);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_WEIGHT_STORE_PLACEMENT_H_
