#include "server/weight_store/tally.h"

#include <vector>

namespace nibble::server {

void Tally::AddBytes(size_t device_index, Format format, int64_t delta) {
  if (observer_ == nullptr) return;
  std::lock_guard lock(mutex_);
  bytes_[{device_index, format}] += delta;
  changed_bytes_.insert({device_index, format});
}

void Tally::AddWeights(size_t device_index, WeightState state, int64_t delta) {
  if (observer_ == nullptr) return;
  std::lock_guard lock(mutex_);
  weights_[{device_index, state}] += delta;
  changed_weights_.insert({device_index, state});
}

void Tally::Report() {
  if (observer_ == nullptr) return;
  std::unique_lock lock(mutex_);
  if (reporting_) return;
  reporting_ = true;
  while (!changed_bytes_.empty() || !changed_weights_.empty()) {
    std::vector<std::pair<BytesKey, int64_t>> bytes;
    for (const BytesKey& key : changed_bytes_) bytes.emplace_back(key, bytes_[key]);
    changed_bytes_.clear();
    std::vector<std::pair<WeightsKey, int64_t>> weights;
    for (const WeightsKey& key : changed_weights_) weights.emplace_back(key, weights_[key]);
    changed_weights_.clear();
    lock.unlock();
    for (const auto& [key, value] : bytes) {
      observer_->OnResidentBytes(key.first, key.second, value);
    }
    for (const auto& [key, value] : weights) observer_->OnWeights(key.first, key.second, value);
    lock.lock();
  }
  reporting_ = false;
}

}  // namespace nibble::server
