#include "server/weight_store/placement.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nibble/status.h"

namespace nibble::server {
namespace {

// The indices of the devices that may be used.
absl::StatusOr<std::vector<size_t>> Candidates(const std::vector<Device*>& devices,
                                               std::string_view device_id) {
  std::vector<size_t> candidates;
  std::vector<std::string> ids;
  absl::Status health = absl::UnavailableError("the server has no device");
  for (size_t i = 0; i < devices.size(); ++i) {
    ids.push_back(devices[i]->info().id);
    if (!device_id.empty() && ids.back() != device_id) continue;
    health = devices[i]->health();
    if (health.ok()) candidates.push_back(i);
  }
  if (!device_id.empty() && std::find(ids.begin(), ids.end(), device_id) == ids.end()) {
    return absl::InvalidArgumentError(
        fmt::format("device: expected one of {}; received '{}'", fmt::join(ids, ", "), device_id));
  }
  if (candidates.empty()) return health;
  return candidates;
}

// What weights may still take.
uint64_t FreeBytes(const Device& device, uint64_t request_share) {
  const MemoryUse use = device.memory();
  const uint64_t kept = request_share == 0 ? 0 : use.total_bytes / request_share;
  return use.total_bytes - std::min(use.used_bytes + kept, use.total_bytes);
}

}  // namespace

absl::StatusOr<Placement> PlaceAndReserve(const std::vector<PlannedWeight>& planned,
                                          const std::vector<Device*>& devices,
                                          std::string_view device_id, uint64_t request_share) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<size_t> candidates, Candidates(devices, device_id));
  // The devices are of one kind: a weight takes the same memory on each.
  Placement placement;
  placement.device_of.resize(planned.size());
  for (const PlannedWeight& weight : planned) {
    placement.bytes_of.push_back(devices[candidates.front()]->WeightBytes(weight.spec));
  }
  std::vector<uint64_t> free_bytes(devices.size());
  for (const size_t i : candidates) free_bytes[i] = FreeBytes(*devices[i], request_share);
  std::vector<uint64_t> needed_bytes(devices.size());

  std::vector<size_t> largest_first(planned.size());
  std::iota(largest_first.begin(), largest_first.end(), size_t{0});
  std::stable_sort(largest_first.begin(), largest_first.end(), [&](size_t a, size_t b) {
    return placement.bytes_of[a] > placement.bytes_of[b];
  });
  for (const size_t weight : largest_first) {
    const size_t device =
        *std::max_element(candidates.begin(), candidates.end(),
                          [&](size_t a, size_t b) { return free_bytes[a] < free_bytes[b]; });
    const uint64_t bytes = placement.bytes_of[weight];
    if (bytes > free_bytes[device]) {
      return absl::ResourceExhaustedError(
          fmt::format("device memory: weight '{}' needs {} bytes; {} has {} bytes free for "
                      "weights, {} more are "
                      "taken by other weights of this load",
                      planned[weight].name, bytes, devices[device]->info().id, free_bytes[device],
                      needed_bytes[device]));
    }
    placement.device_of[weight] = device;
    free_bytes[device] -= bytes;
    needed_bytes[device] += bytes;
  }
  placement.reservations.resize(devices.size());
  for (const size_t i : candidates) {
    if (needed_bytes[i] == 0) continue;
    NIBBLE_ASSIGN_OR_RETURN(placement.reservations[i], devices[i]->Reserve(needed_bytes[i]));
  }
  return placement;
}

}  // namespace nibble::server
