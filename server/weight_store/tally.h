// Counts what is resident, and tells the observer of changes.
#ifndef NIBBLE_SERVER_WEIGHT_STORE_TALLY_H_
#define NIBBLE_SERVER_WEIGHT_STORE_TALLY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "server/weight_store/weight_store.h"

namespace nibble::server {

// Changes are made where the store's lock is held; Report is called where none is. Thread safe.
class Tally {
 public:
  explicit Tally(WeightStoreObserver* observer) : observer_(observer) {}

  void AddBytes(size_t device_index, Format format, int64_t delta);
  void AddWeights(size_t device_index, WeightState state, int64_t delta);

  // Passes what has changed to the observer. When another thread is at it, that one does: so the
  // observer never ends on a number that is no longer true.
  void Report();

 private:
  using BytesKey = std::pair<size_t, Format>;
  using WeightsKey = std::pair<size_t, WeightState>;

  WeightStoreObserver* const observer_;
  std::mutex mutex_;
  std::map<BytesKey, int64_t> bytes_;
  std::map<WeightsKey, int64_t> weights_;
  std::set<BytesKey> changed_bytes_;
  std::set<WeightsKey> changed_weights_;
  bool reporting_ = false;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_WEIGHT_STORE_TALLY_H_
