// Moves a checkpoint or a matrix into the weight store as one transaction: either all of it becomes
// ready, or nothing is left behind.
#ifndef NIBBLE_SERVER_LOADER_LOADER_H_
#define NIBBLE_SERVER_LOADER_LOADER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nibble/quantize.h"
#include "nibble/tensor.h"
#include "nibble/weight.h"
#include "server/checkpoint/checkpoint.h"
#include "server/weight_store/weight_store.h"

namespace nibble::server {

struct LoadProgress {
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;
  int layers_done = 0;
  int layers_total = 0;
  std::string layer;  // the last one that was begun
};

struct Loaded {
  std::vector<std::string> weights;  // full names, ready now
  std::vector<std::string> notices;
  int64_t bytes = 0;  // of the canonical weights
};

struct LoadTarget {
  std::string model;
  std::string device;  // empty: by free memory
};

// Loads every layer of `checkpoint` as "model/LAYER", on threads of its own. `progress` is called
// on this thread, before a layer is handed to them, whenever one is done, and at the end.
// kCancelled once `cancelled` is set. kInvalidArgument for a checkpoint without a layer.
absl::StatusOr<Loaded> LoadCheckpoint(WeightStore& store, const checkpoint::Checkpoint& checkpoint,
                                      const LoadTarget& target,
                                      const std::function<void(const LoadProgress&)>& progress,
                                      const std::atomic<bool>& cancelled);

// Quantizes `matrix` [N, K] to `format` and makes it ready under the model's name itself.
absl::StatusOr<Loaded> LoadMatrix(WeightStore& store, const ConstMatrixView& matrix,
                                  const QuantizeTarget& format, const LoadTarget& target);

// The directory `path` below `root`, links resolved. kFailedPrecondition without a root, kNotFound
// when there is no such directory, kPermissionDenied when it lies outside the root.
absl::StatusOr<std::string> ResolveBelowRoot(const std::string& root, const std::string& path);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_LOADER_LOADER_H_
