#include "server/executor/tuned_choices.h"

namespace nibble::server {

Choice TunedChoices::SelectFor(const Problem& problem, const DeviceInfo& device) {
  if (problem.op != Op::kMatmul) return Select(problem, device);
  std::lock_guard lock(mutex_);
  const MatmulKey key = KeyOf(problem);
  if (table_.Find(key) == nullptr && table_.size() + others_.size() < kMaxKeys &&
      others_.try_emplace(key, false).second) {
    if (on_wanted_) on_wanted_();
  }
  return Select(problem, device, &table_);
}

std::optional<MeasuredMatmul> TunedChoices::Find(const MatmulKey& key) const {
  std::lock_guard lock(mutex_);
  const MeasuredMatmul* measured = table_.Find(key);
  if (measured == nullptr) return std::nullopt;
  return *measured;
}

bool TunedChoices::Settled(const MatmulKey& key) const {
  std::lock_guard lock(mutex_);
  if (table_.Find(key) != nullptr) return true;
  const auto other = others_.find(key);
  return other != others_.end() ? other->second : table_.size() + others_.size() >= kMaxKeys;
}

void TunedChoices::Put(const MatmulKey& key, MeasuredMatmul measured) {
  std::lock_guard lock(mutex_);
  others_.erase(key);
  if (table_.size() < kMaxKeys) table_.Set(key, std::move(measured));
}

void TunedChoices::GiveUp(const MatmulKey& key) {
  std::lock_guard lock(mutex_);
  others_.erase(key);
  if (table_.size() + others_.size() < kMaxKeys) others_.emplace(key, true);
}

std::vector<std::pair<MatmulKey, MeasuredMatmul>> TunedChoices::All() const {
  std::lock_guard lock(mutex_);
  return {table_.begin(), table_.end()};
}

std::vector<MatmulKey> TunedChoices::Wanted() const {
  std::lock_guard lock(mutex_);
  std::vector<MatmulKey> wanted;
  for (const auto& [key, given_up] : others_) {
    if (!given_up) wanted.push_back(key);
  }
  return wanted;
}

void TunedChoices::OnWanted(std::function<void()> on_wanted) {
  std::lock_guard lock(mutex_);
  on_wanted_ = std::move(on_wanted);
}

}  // namespace nibble::server
