#include "server/weight_store/weight_store.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "nibble/status.h"
#include "server/weight_store/weight_store_impl.h"

namespace nibble::server {
namespace {

// Why a name without a Ready version cannot be had.
absl::Status NotReady(std::string_view name, const VersionRow& newest) {
  switch (newest.state) {
    case WeightState::kLoading:
      return absl::FailedPreconditionError(fmt::format("weight '{}' is loading", name));
    case WeightState::kDraining:
      return absl::FailedPreconditionError(
          fmt::format("weight '{}' is draining: it was unloaded and takes no new requests", name));
    case WeightState::kFailed:
      return absl::FailedPreconditionError(
          fmt::format("weight '{}' failed to load: {}", name, newest.error));
    case WeightState::kReady:
      break;
  }
  return absl::InternalError(fmt::format("weight '{}' is ready without a handle", name));
}

absl::Status NoSuchWeight(std::string_view name) {
  return absl::NotFoundError(fmt::format("no weight is named '{}'", name));
}

WeightInfo InfoOf(const std::string& name, const VersionRow& row) {
  WeightInfo info;
  info.name = name;
  info.version = row.version;
  info.state = row.state;
  info.spec = row.spec;
  info.device_bytes = row.device_bytes;
  info.device_index = row.device_index;
  info.error = row.error;
  info.input_scale = row.input_scale;
  const int64_t own = row.state == WeightState::kReady ? 1 : 0;
  info.handles = std::max<int64_t>(row.resident.use_count() - own, 0);
  if (row.counters != nullptr) {
    info.requests = row.counters->requests.load(std::memory_order_relaxed);
    info.rows = row.counters->rows.load(std::memory_order_relaxed);
    info.batches = row.counters->batches.load(std::memory_order_relaxed);
    info.compute_us = row.counters->compute_us.load(std::memory_order_relaxed);
  }
  return info;
}

}  // namespace

absl::StatusOr<WeightHandle> WeightStore::Impl::Acquire(std::string_view name) const {
  std::shared_lock lock(mutex_);
  const auto found = names_.find(name);
  if (found == names_.end()) return NoSuchWeight(name);
  if (found->second.ready != nullptr) return found->second.ready;
  return NotReady(name, found->second.versions.back());
}

std::vector<WeightInfo> WeightStore::Impl::List(std::string_view prefix) const {
  std::vector<WeightInfo> infos;
  std::shared_lock lock(mutex_);
  for (auto it = names_.lower_bound(prefix);
       it != names_.end() && std::string_view(it->first).starts_with(prefix); ++it) {
    for (const VersionRow& row : it->second.versions) infos.push_back(InfoOf(it->first, row));
  }
  return infos;
}

absl::StatusOr<WeightInfo> WeightStore::Impl::Describe(std::string_view name) const {
  std::shared_lock lock(mutex_);
  const auto found = names_.find(name);
  if (found == names_.end()) return NoSuchWeight(name);
  const std::vector<VersionRow>& versions = found->second.versions;
  const auto ready = std::find_if(versions.begin(), versions.end(), [](const VersionRow& row) {
    return row.state == WeightState::kReady;
  });
  return InfoOf(found->first, ready != versions.end() ? *ready : versions.back());
}

absl::Status WeightStore::Impl::Unload(std::string_view name,
                                       std::function<void(const Unloaded&)> done) {
  auto unload = std::make_shared<PendingUnload>();
  unload->done = std::move(done);
  unload->waiting_for = 1;  // this call itself
  std::vector<WeightHandle> released;
  {
    std::unique_lock lock(mutex_);
    if (ClaimedByLoad(name)) {
      return absl::FailedPreconditionError(
          fmt::format("weight '{}' is loading: it can be unloaded when the load has ended", name));
    }
    const std::vector<std::string> names = NamesOf(name);
    if (names.empty()) return NoSuchWeight(name);
    for (const std::string& member : names) {
      Named& named = names_.find(member)->second;
      ForgetFailed(named, member);
      Drain(named, released);
      if (!named.versions.empty()) ++unload->result.weights;
      for (VersionRow& row : named.versions) {
        row.unloads.push_back(unload);
        ++unload->waiting_for;
      }
      EraseIfEmpty(member);
    }
  }
  released.clear();
  tally_.Report();
  {
    std::unique_lock lock(mutex_);
    if (--unload->waiting_for > 0) return absl::OkStatus();
  }
  unload->done(unload->result);
  return absl::OkStatus();
}

void WeightStore::Impl::OnFreed(const std::string& name, uint64_t version) {
  std::vector<std::shared_ptr<PendingUnload>> finished;
  {
    std::unique_lock lock(mutex_);
    const auto found = names_.find(name);
    if (found == names_.end()) return;
    std::vector<VersionRow>& versions = found->second.versions;
    const auto row = std::find_if(versions.begin(), versions.end(), [&](const VersionRow& other) {
      return other.version == version;
    });
    if (row == versions.end()) return;
    for (std::shared_ptr<PendingUnload>& unload : row->unloads) {
      unload->result.freed_bytes += static_cast<int64_t>(row->device_bytes);
      if (--unload->waiting_for == 0) finished.push_back(std::move(unload));
    }
    tally_.AddBytes(row->device_index, row->spec.format, -static_cast<int64_t>(row->device_bytes));
    tally_.AddWeights(row->device_index, row->state, -1);
    versions.erase(row);
    EraseIfEmpty(name);
  }
  tally_.Report();
  for (const std::shared_ptr<PendingUnload>& unload : finished) unload->done(unload->result);
}

void WeightStore::Impl::Close() {
  std::vector<WeightHandle> released;
  std::unique_lock lock(mutex_);
  for (auto& [name, named] : names_) Drain(named, released);
  lock.unlock();
  released.clear();
}

std::shared_ptr<WeightCounters> WeightStore::Impl::CountersOf(const std::string& name) {
  std::shared_ptr<WeightCounters>& counters = counters_[name];
  if (counters == nullptr) counters = std::make_shared<WeightCounters>();
  return counters;
}

// The names that belong to `model`: itself and "model/...".
std::vector<std::string> WeightStore::Impl::NamesOf(std::string_view model) const {
  std::vector<std::string> names;
  if (names_.contains(model)) names.emplace_back(model);
  const std::string prefix = fmt::format("{}/", model);
  for (auto it = names_.lower_bound(prefix); it != names_.end() && it->first.starts_with(prefix);
       ++it) {
    names.push_back(it->first);
  }
  return names;
}

void WeightStore::Impl::Drain(Named& named, std::vector<WeightHandle>& released) {
  if (named.ready == nullptr) return;
  const uint64_t version = named.ready->version();
  for (VersionRow& row : named.versions) {
    if (row.version == version) SetState(row, WeightState::kDraining);
  }
  released.push_back(std::exchange(named.ready, nullptr));
}

void WeightStore::Impl::ForgetFailed(Named& named, std::string_view name) {
  std::erase_if(named.versions, [&](const VersionRow& row) {
    if (row.state != WeightState::kFailed) return false;
    tally_.AddWeights(row.device_index, WeightState::kFailed, -1);
    std::erase_if(failed_, [&](const auto& entry) {
      return entry.second == row.version && entry.first == name;
    });
    return true;
  });
}

void WeightStore::Impl::RememberFailed(const std::string& name, VersionRow& row,
                                       const std::string& error) {
  SetState(row, WeightState::kFailed);
  row.error = error;
  row.device_bytes = 0;
  failed_.emplace_back(name, row.version);
  if (failed_.size() <= kMaxFailedRemembered) return;
  const std::string oldest = failed_.front().first;
  ForgetFailed(names_.find(oldest)->second, oldest);
  EraseIfEmpty(oldest);
}

void WeightStore::Impl::SetState(VersionRow& row, WeightState state) {
  tally_.AddWeights(row.device_index, row.state, -1);
  tally_.AddWeights(row.device_index, state, +1);
  row.state = state;
}

void WeightStore::Impl::EraseIfEmpty(std::string_view name) {
  const auto found = names_.find(name);
  if (found->second.versions.empty()) names_.erase(found);
}

WeightStore::WeightStore(std::vector<Device*> devices, WeightStoreObserver* observer,
                         uint64_t request_share)
    : impl_(std::make_shared<Impl>(std::move(devices), observer, request_share)) {}
WeightStore::~WeightStore() { impl_->Close(); }

absl::StatusOr<WeightHandle> WeightStore::Acquire(std::string_view name) const {
  return impl_->Acquire(name);
}
absl::StatusOr<std::unique_ptr<WeightStore::Transaction>> WeightStore::Begin(
    std::string_view model, std::vector<PlannedWeight> planned, std::string_view device_id) {
  return impl_->Begin(model, std::move(planned), device_id);
}
absl::Status WeightStore::Unload(std::string_view name, std::function<void(const Unloaded&)> done) {
  return impl_->Unload(name, std::move(done));
}
std::vector<WeightInfo> WeightStore::List(std::string_view prefix) const {
  return impl_->List(prefix);
}
absl::StatusOr<WeightInfo> WeightStore::Describe(std::string_view name) const {
  return impl_->Describe(name);
}
const std::vector<Device*>& WeightStore::devices() const { return impl_->devices(); }

absl::Status ValidateWeightName(std::string_view name) {
  constexpr size_t kMaxBytes = 256;
  if (name.empty() || name.size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        fmt::format("name: expected 1 to {} bytes; received {}", kMaxBytes, name.size()));
  }
  size_t component = 0;  // where the current one begins
  for (size_t i = 0; i <= name.size(); ++i) {
    if (i == name.size() || name[i] == '/') {
      const std::string_view part = name.substr(component, i - component);
      if (part.empty() || part == "." || part == "..") {
        return absl::InvalidArgumentError(
            fmt::format("name: expected no empty, '.' or '..' component; received '{}' at byte {}",
                        part, component));
      }
      component = i + 1;
      continue;
    }
    const char c = name[i];
    const bool legal = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_' || c == '-';
    if (!legal) {
      return absl::InvalidArgumentError(
          fmt::format("name: expected letters, digits and '. _ - /'; received byte 0x{:02x} at {}",
                      static_cast<unsigned char>(c), i));
    }
  }
  return absl::OkStatus();
}

}  // namespace nibble::server
