#include "server/autotune/served_weights.h"

#include <utility>

namespace nibble::server {
namespace {

// More than the caches of an H200 (50 MB) and of most processors.
constexpr uint64_t kColdBytes = uint64_t{128} << 20;
constexpr size_t kMaxWeights = 16;

}  // namespace

ServedWeights::ServedWeights(const WeightStore& store, size_t device_index, const WeightSpec& spec)
    : store_(store) {
  uint64_t bytes = 0;
  for (WeightInfo& info : store.List("")) {
    if (served_.size() == kMaxWeights || bytes >= kColdBytes) break;
    if (info.state != WeightState::kReady || info.device_index != device_index ||
        info.spec != spec) {
      continue;
    }
    bytes += info.device_bytes;
    served_.push_back({std::move(info.name), info.version});
  }
  if (!served_.empty()) name_ = served_.front().name;
}

std::vector<WeightHandle> ServedWeights::Hold() {
  std::vector<WeightHandle> handles;
  std::erase_if(served_, [&](const Served& served) {
    absl::StatusOr<WeightHandle> handle = store_.Acquire(served.name);
    if (!handle.ok() || (*handle)->version() != served.version) return true;
    handles.push_back(*std::move(handle));
    return false;
  });
  return handles;
}

}  // namespace nibble::server
