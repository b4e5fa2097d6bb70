// The resident weights of all devices, by name.
//
//   Begin --> Loading --Commit--> Ready --Unload--> Draining --last handle gone--> Freed
//                |                   |                 ^
//                |                   +--newer version--+
//                |
//                +--transaction destroyed without Commit--> Failed
//                   (memory given back, the reason kept)
//
// A name can have several versions at once: at most one Ready, one Loading, one Failed, and any
// number Draining. Acquire sees the Ready one alone. A handle keeps its version's memory alive; the
// thread that drops the last one frees it. Counters belong to the name: a reload goes on counting.
#ifndef NIBBLE_SERVER_WEIGHT_STORE_WEIGHT_STORE_H_
#define NIBBLE_SERVER_WEIGHT_STORE_WEIGHT_STORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nibble/backend.h"
#include "nibble/weight.h"

namespace nibble::server {

enum class WeightState : uint8_t { kLoading, kReady, kDraining, kFailed };

struct WeightCounters {
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> rows{0};
  std::atomic<uint64_t> batches{0};
  std::atomic<uint64_t> compute_us{0};
};

// One version of one weight. The store hands it out as shared_ptr<const ResidentWeight>, the
// handle.
class ResidentWeight {
 public:
  virtual ~ResidentWeight() = default;
  virtual const std::string& name() const = 0;
  virtual uint64_t version() const = 0;     // counts up over the process, unique over all names
  virtual size_t device_index() const = 0;  // into the store's devices
  virtual const DeviceWeight& weight() const = 0;
  virtual WeightCounters& counters() const = 0;
};
using WeightHandle = std::shared_ptr<const ResidentWeight>;

struct WeightInfo {
  std::string name;
  uint64_t version = 0;
  WeightState state = WeightState::kLoading;
  WeightSpec spec;
  uint64_t device_bytes = 0;
  size_t device_index = 0;
  std::string error;    // kFailed
  int64_t handles = 0;  // handles out, the store's own not counted
  float input_scale = 1.0f;
  uint64_t requests = 0, rows = 0, batches = 0, compute_us = 0;
};

struct PlannedWeight {
  std::string name;  // full name
  WeightSpec spec;
};

// Called when numbers of a (device, format, state) may have changed; without locks.
class WeightStoreObserver {
 public:
  virtual ~WeightStoreObserver() = default;
  // Bytes resident on a device in a format (Ready and Draining).
  virtual void OnResidentBytes(size_t device_index, Format format, int64_t bytes) = 0;
  virtual void OnWeights(size_t device_index, WeightState state, int64_t count) = 0;
};

class WeightStore {
 public:
  // Failed weights are remembered up to this many, the oldest forgotten first.
  static constexpr size_t kMaxFailedRemembered = 256;

  // `devices` outlive the store; observer may be null. Indices follow the order of `devices`.
  // Weights leave one `request_share`-th of each device's memory to the requests; with 0 they may
  // take all of it.
  WeightStore(std::vector<Device*> devices, WeightStoreObserver* observer,
              uint64_t request_share = 0);
  // All handles must be gone.
  ~WeightStore();

  // The Ready version of `name`. kNotFound: no such name; kFailedPrecondition: it is loading,
  // draining or failed (the message says which, and why).
  absl::StatusOr<WeightHandle> Acquire(std::string_view name) const;

  // The loading of one model or weight. Add may be called from several threads.
  class Transaction {
   public:
    virtual ~Transaction() = default;
    // Uploads the weight planned under `name`. After an error it may be tried again.
    virtual absl::Status Add(std::string_view name, const CanonicalWeight& weight) = 0;
    // Makes everything planned Ready at once, and drains the older versions: of the planned names,
    // and of the names "model" and "model/..." that the model no longer has. kInternal unless every
    // planned weight was added.
    virtual absl::Status Commit() = 0;
    // The reason that the weights are reported with, should it end without Commit.
    virtual void Fail(const absl::Status& reason) = 0;
  };
  // Places every planned weight (on `device_id`, or each on the device with the most free memory),
  // reserves its memory and lists it as Loading. `model` is the name the caller used: planned names
  // equal it or start with "model/".
  //   kResourceExhausted   the device memory does not suffice; gives bytes needed and free
  //   kFailedPrecondition  a load of `model`, of a model under it or above it is under way
  //   kInvalidArgument     an illegal name or spec, no planned weight, a name planned twice, an
  //                        unknown device
  //   kUnavailable         the device is lost
  absl::StatusOr<std::unique_ptr<Transaction>> Begin(std::string_view model,
                                                     std::vector<PlannedWeight> planned,
                                                     std::string_view device_id);

  struct Unloaded {
    int weights = 0;
    int64_t freed_bytes = 0;
  };
  // Drains `name`, or every "name/...", and calls `done` when the memory is free (at once when
  // nobody holds a handle). Failed weights of the name are forgotten. kNotFound, without calling
  // done, where there is nothing; kFailedPrecondition while it is loading.
  absl::Status Unload(std::string_view name, std::function<void(const Unloaded&)> done);

  // All versions whose name starts with `prefix`, sorted by name and version.
  std::vector<WeightInfo> List(std::string_view prefix) const;
  // The Ready version of `name`, or the newest other one. kNotFound.
  absl::StatusOr<WeightInfo> Describe(std::string_view name) const;

  const std::vector<Device*>& devices() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

// Letters, digits and ". _ - /"; 1 to 256 bytes; no empty, "." or ".." component. kInvalidArgument.
absl::Status ValidateWeightName(std::string_view name);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_WEIGHT_STORE_WEIGHT_STORE_H_
