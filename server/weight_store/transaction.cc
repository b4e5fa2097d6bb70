// Loading: Begin, and the transaction that it hands out.
#include <algorithm>
#include <set>
#include <utility>

#include "fmt/format.h"
#include "nibble/status.h"
#include "server/weight_store/placement.h"
#include "server/weight_store/weight_store_impl.h"

namespace nibble::server {
namespace {

class Resident final : public ResidentWeight {
 public:
  Resident(std::string name, uint64_t version, size_t device_index,
           std::unique_ptr<DeviceWeight> weight, std::shared_ptr<WeightCounters> counters)
      : name_(std::move(name)),
        version_(version),
        device_index_(device_index),
        weight_(std::move(weight)),
        counters_(std::move(counters)) {}

  const std::string& name() const override { return name_; }
  uint64_t version() const override { return version_; }
  size_t device_index() const override { return device_index_; }
  const DeviceWeight& weight() const override { return *weight_; }
  WeightCounters& counters() const override { return *counters_; }

 private:
  const std::string name_;
  const uint64_t version_;
  const size_t device_index_;
  const std::unique_ptr<DeviceWeight> weight_;
  const std::shared_ptr<WeightCounters> counters_;
};

// Whether `name` is `model` or lies under it.
bool BelongsTo(std::string_view name, std::string_view model) {
  return name.starts_with(model) && (name.size() == model.size() || name[model.size()] == '/');
}

absl::Status ValidatePlan(std::string_view model, const std::vector<PlannedWeight>& planned) {
  NIBBLE_RETURN_IF_ERROR(ValidateWeightName(model));
  if (planned.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("model '{}': expected at least one weight; received none", model));
  }
  std::set<std::string_view> names;
  for (const PlannedWeight& weight : planned) {
    NIBBLE_RETURN_IF_ERROR(ValidateWeightName(weight.name));
    if (!BelongsTo(weight.name, model)) {
      return absl::InvalidArgumentError(
          fmt::format("name: expected '{}' or a name under it; received '{}'", model, weight.name));
    }
    if (!names.insert(weight.name).second) {
      return absl::InvalidArgumentError(
          fmt::format("name: expected each weight once; '{}' is planned twice", weight.name));
    }
    if (const absl::StatusOr<WeightGeometry> geometry = GeometryOf(weight.spec); !geometry.ok()) {
      return absl::Status(geometry.status().code(), fmt::format("weight '{}': {}", weight.name,
                                                                MessageOf(geometry.status())));
    }
  }
  return absl::OkStatus();
}

}  // namespace

class WeightStore::Impl::LoadTransaction final : public WeightStore::Transaction {
 public:
  LoadTransaction(std::shared_ptr<Impl> store, std::string model, std::vector<Loading> loading,
                  std::vector<std::unique_ptr<Device::Reservation>> reservations)
      : store_(std::move(store)),
        model_(std::move(model)),
        loading_(std::move(loading)),
        being_added_(loading_.size()),
        reservations_(std::move(reservations)) {
    for (size_t i = 0; i < loading_.size(); ++i) index_.emplace(loading_[i].name, i);
  }

  ~LoadTransaction() override {
    if (committed_) return;
    for (Loading& weight : loading_) weight.weight.reset();
    reservations_.clear();
    store_->Abandon(model_, loading_, reason_);
  }

  absl::Status Add(std::string_view name, const CanonicalWeight& weight) override;
  absl::Status Commit() override;
  void Fail(const absl::Status& reason) override {
    std::lock_guard lock(mutex_);
    reason_ = reason;
    reason_given_ = true;
  }

 private:
  // The first error is the reason, unless the caller gives another.
  absl::Status Note(absl::Status error) {
    if (!reason_given_ && !error_noted_) reason_ = error;
    error_noted_ = true;
    return error;
  }

  const std::shared_ptr<Impl> store_;
  const std::string model_;
  std::mutex mutex_;
  std::vector<Loading> loading_;
  std::vector<bool> being_added_;
  std::map<std::string, size_t, std::less<>> index_;  // into loading_, by name
  std::vector<std::unique_ptr<Device::Reservation>> reservations_;
  bool committed_ = false;
  absl::Status reason_ = absl::CancelledError("the load ended before it was complete");
  bool reason_given_ = false;
  bool error_noted_ = false;
};

absl::Status WeightStore::Impl::LoadTransaction::Add(std::string_view name,
                                                     const CanonicalWeight& weight) {
  size_t i = 0;
  {
    std::lock_guard lock(mutex_);
    const auto found = index_.find(name);
    if (found == index_.end()) {
      return Note(absl::InvalidArgumentError(
          fmt::format("name: expected a weight planned for '{}'; received '{}'", model_, name)));
    }
    i = found->second;
    if (committed_ || being_added_[i]) {
      return Note(absl::InvalidArgumentError(
          fmt::format("name: expected each weight once; '{}' was added before", name)));
    }
    if (weight.spec != loading_[i].spec) {
      return Note(absl::InvalidArgumentError(
          fmt::format("weight '{}': expected {} as planned; received {}", name,
                      ToString(loading_[i].spec), ToString(weight.spec))));
    }
    being_added_[i] = true;
  }
  const size_t device = loading_[i].device_index;
  absl::StatusOr<std::unique_ptr<DeviceWeight>> uploaded =
      store_->devices_[device]->Upload(weight, reservations_[device].get());
  std::lock_guard lock(mutex_);
  if (!uploaded.ok()) {
    being_added_[i] = false;
    return Note(uploaded.status());
  }
  loading_[i].weight = *std::move(uploaded);
  return absl::OkStatus();
}

absl::Status WeightStore::Impl::LoadTransaction::Commit() {
  std::lock_guard lock(mutex_);
  if (committed_) return absl::InternalError("the load was committed before");
  for (const Loading& weight : loading_) {
    if (weight.weight != nullptr) continue;
    return Note(absl::InternalError(
        fmt::format("commit of '{}': weight '{}' was not added", model_, weight.name)));
  }
  committed_ = true;
  store_->Commit(model_, std::move(loading_));
  reservations_.clear();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WeightStore::Transaction>> WeightStore::Impl::Begin(
    std::string_view model, std::vector<PlannedWeight> planned, std::string_view device_id) {
  NIBBLE_RETURN_IF_ERROR(ValidatePlan(model, planned));
  {
    std::unique_lock lock(mutex_);
    if (ClaimedByLoad(model)) {
      return absl::FailedPreconditionError(fmt::format("a load of '{}' is under way", model));
    }
    loading_models_.emplace(model);
  }
  absl::StatusOr<Placement> placed = [&] {
    std::lock_guard lock(placement_mutex_);
    return PlaceAndReserve(planned, devices_, device_id, request_share_);
  }();
  std::vector<Loading> loading;
  {
    std::unique_lock lock(mutex_);
    if (!placed.ok()) {
      loading_models_.erase(loading_models_.find(model));
      return placed.status();
    }
    for (size_t i = 0; i < planned.size(); ++i) {
      Named& named = names_[planned[i].name];
      ForgetFailed(named, planned[i].name);
      VersionRow& row = named.versions.emplace_back();
      row.version = next_version_++;
      row.spec = planned[i].spec;
      row.device_index = placed->device_of[i];
      row.device_bytes = placed->bytes_of[i];
      tally_.AddWeights(row.device_index, WeightState::kLoading, +1);
      loading.push_back({std::move(planned[i].name), row.spec, row.device_index, row.device_bytes,
                         row.version, nullptr});
    }
  }
  tally_.Report();
  return std::make_unique<LoadTransaction>(shared_from_this(), std::string(model),
                                           std::move(loading), std::move(placed->reservations));
}

bool WeightStore::Impl::ClaimedByLoad(std::string_view name) const {
  return std::any_of(loading_models_.begin(), loading_models_.end(), [&](const std::string& model) {
    return BelongsTo(name, model) || BelongsTo(model, name);
  });
}

void WeightStore::Impl::Commit(const std::string& model, std::vector<Loading> loaded) {
  std::vector<WeightHandle> released;
  {
    std::unique_lock lock(mutex_);
    std::set<std::string_view> kept;
    for (const Loading& weight : loaded) kept.insert(weight.name);
    for (const std::string& name : NamesOf(model)) {
      Named& named = names_.find(name)->second;
      Drain(named, released);
      if (!kept.contains(name)) ForgetFailed(named, name);
      EraseIfEmpty(name);
    }
    for (Loading& weight : loaded) {
      Named& named = names_.find(weight.name)->second;
      VersionRow& row = named.versions.back();
      row.device_bytes = weight.weight->bytes();
      row.input_scale = weight.weight->input_scale();
      const std::shared_ptr<WeightCounters> counters = CountersOf(weight.name);
      row.counters = counters;
      const auto free = [store = weak_from_this()](const Resident* resident) {
        const std::string name = resident->name();
        const uint64_t version = resident->version();
        delete resident;
        if (const std::shared_ptr<Impl> impl = store.lock()) impl->OnFreed(name, version);
      };
      named.ready = std::shared_ptr<const Resident>(
          new Resident(weight.name, weight.version, weight.device_index, std::move(weight.weight),
                       counters),
          free);
      row.resident = named.ready;
      SetState(row, WeightState::kReady);
      tally_.AddBytes(row.device_index, row.spec.format, static_cast<int64_t>(row.device_bytes));
    }
    loading_models_.erase(model);
  }
  released.clear();
  tally_.Report();
}

void WeightStore::Impl::Abandon(const std::string& model, const std::vector<Loading>& loading,
                                const absl::Status& reason) {
  const std::string error =
      fmt::format("{}: {}", absl::StatusCodeToString(reason.code()), MessageOf(reason));
  {
    std::unique_lock lock(mutex_);
    for (const Loading& weight : loading) {
      RememberFailed(weight.name, names_.find(weight.name)->second.versions.back(), error);
    }
    loading_models_.erase(model);
  }
  tally_.Report();
}

}  // namespace nibble::server
