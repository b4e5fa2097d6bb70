// The store's table of versions. A version's life, and who holds its memory:
//
//   state      entered by                        memory held by
//   Loading    Begin                             the transaction (and its reservations)
//   Ready      Commit                            Named::ready and the handles out
//   Draining   Commit of a newer version that    the handles out
//              replaces it, Unload
//   (freed)    the last handle going             nobody; the row is erased, Unloads are answered
//   Failed     a transaction ending uncommitted  nobody; the row is kept for its reason until a
//                                                new load, Unload, or kMaxFailedRemembered newer
//                                                ones
//
// Device memory is freed, and callbacks are called, with no lock held.
#ifndef NIBBLE_SERVER_WEIGHT_STORE_WEIGHT_STORE_IMPL_H_
#define NIBBLE_SERVER_WEIGHT_STORE_WEIGHT_STORE_IMPL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/weight_store/tally.h"
#include "server/weight_store/weight_store.h"

namespace nibble::server {

// An Unload that waits for versions to be freed.
struct PendingUnload {
  std::function<void(const WeightStore::Unloaded&)> done;
  WeightStore::Unloaded result;
  size_t waiting_for = 0;  // versions
};

struct VersionRow {
  uint64_t version = 0;
  WeightState state = WeightState::kLoading;
  WeightSpec spec;
  size_t device_index = 0;
  uint64_t device_bytes = 0;  // Loading: what is reserved for it
  float input_scale = 1.0f;
  std::string error;
  std::weak_ptr<const ResidentWeight> resident;         // Ready, Draining
  std::shared_ptr<const WeightCounters> counters;       // Ready, Draining
  std::vector<std::shared_ptr<PendingUnload>> unloads;  // Draining
};

struct Named {
  WeightHandle ready;                // the store's own handle
  std::vector<VersionRow> versions;  // oldest first
};

class WeightStore::Impl : public std::enable_shared_from_this<WeightStore::Impl> {
 public:
  // A weight of a load, from Begin until Commit or the end of the transaction.
  struct Loading {
    std::string name;
    WeightSpec spec;
    size_t device_index = 0;
    uint64_t reserved_bytes = 0;
    uint64_t version = 0;
    std::unique_ptr<DeviceWeight> weight;  // once added
  };

  Impl(std::vector<Device*> devices, WeightStoreObserver* observer)
      : devices_(std::move(devices)), tally_(observer) {}

  absl::StatusOr<WeightHandle> Acquire(std::string_view name) const;
  absl::StatusOr<std::unique_ptr<Transaction>> Begin(std::string_view model,
                                                     std::vector<PlannedWeight> planned,
                                                     std::string_view device_id);
  absl::Status Unload(std::string_view name, std::function<void(const Unloaded&)> done);
  std::vector<WeightInfo> List(std::string_view prefix) const;
  absl::StatusOr<WeightInfo> Describe(std::string_view name) const;
  const std::vector<Device*>& devices() const { return devices_; }
  void Close();

  // The ends of a transaction.
  void Commit(const std::string& model, std::vector<Loading> loaded);
  void Abandon(const std::string& model, const std::vector<Loading>& loading,
               const absl::Status& reason);
  // A version's last handle has gone and its memory is free.
  void OnFreed(const std::string& name, uint64_t version);

 private:
  class LoadTransaction;
  using Names = std::map<std::string, Named, std::less<>>;

  std::shared_ptr<WeightCounters> CountersOf(const std::string& name);

  // With mutex_ held exclusively. Handles that the store lets go of are moved to `released`, for
  // the caller to drop without the lock.
  bool ClaimedByLoad(std::string_view name) const;
  std::vector<std::string> NamesOf(std::string_view model) const;
  void Drain(Named& named, std::vector<WeightHandle>& released);
  void ForgetFailed(Named& named, std::string_view name);
  void RememberFailed(const std::string& name, VersionRow& row, const std::string& error);
  void SetState(VersionRow& row, WeightState state);
  void EraseIfEmpty(std::string_view name);

  const std::vector<Device*> devices_;
  Tally tally_;
  std::mutex placement_mutex_;  // one load at a time looks at free memory and reserves it

  mutable std::shared_mutex mutex_;
  Names names_;
  std::set<std::string, std::less<>> loading_models_;
  std::deque<std::pair<std::string, uint64_t>> failed_;  // name and version, oldest first
  uint64_t next_version_ = 1;
  // Of every name that was ever Ready: a reload goes on counting where the last version stopped.
  std::map<std::string, std::shared_ptr<WeightCounters>, std::less<>> counters_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_WEIGHT_STORE_WEIGHT_STORE_IMPL_H_
