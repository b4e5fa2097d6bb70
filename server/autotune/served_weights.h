// The weights that a key is measured with: some that serve on one device, never kept from being
// unloaded.
#ifndef NIBBLE_SERVER_AUTOTUNE_SERVED_WEIGHTS_H_
#define NIBBLE_SERVER_AUTOTUNE_SERVED_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "server/weight_store/weight_store.h"

namespace nibble::server {

class ServedWeights {
 public:
  // Weights of `spec` on the device, so many that they do not all stay in its caches from one
  // launch to the next, as those of a model's other layers do not either; fewer where there are not
  // as many. `store` outlives this.
  ServedWeights(const WeightStore& store, size_t device_index, const WeightSpec& spec);

  // Handles of those that still serve; to be held for one measurement. Empty once none does.
  std::vector<WeightHandle> Hold();
  // The first one's name; empty where there is none.
  const std::string& name() const { return name_; }

 private:
  struct Served {
    std::string name;
    uint64_t version = 0;
  };

  const WeightStore& store_;
  std::vector<Served> served_;
  std::string name_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_AUTOTUNE_SERVED_WEIGHTS_H_
