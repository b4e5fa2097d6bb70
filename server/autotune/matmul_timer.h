// Times launches of one matmul key on one device, with activations and results of its own.
#ifndef NIBBLE_SERVER_AUTOTUNE_MATMUL_TIMER_H_
#define NIBBLE_SERVER_AUTOTUNE_MATMUL_TIMER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "nibble/backend.h"
#include "nibble/measured.h"
#include "server/weight_store/weight_store.h"

namespace nibble::server {

// Used by one thread. Takes a stream and memory of the device, at most `memory_bytes`.
class MatmulTimer {
 public:
  static absl::StatusOr<std::unique_ptr<MatmulTimer>> Create(Device& device, const MatmulKey& key,
                                                             uint64_t memory_bytes);

  // Device time of a launch with m rows in microseconds: the mean of `launches` (> 0) in a row,
  // each on the next of `weights` (at least one, all of the key's spec). On return the device is
  // done with all of it. Few rows are replayed as a graph where the device has graphs, as they are
  // when they are served.
  //   kResourceExhausted  the rows would take more than memory_bytes, or than the device has
  //   others              of the device
  absl::StatusOr<double> Time(const Choice& choice, int64_t m,
                              std::span<const WeightHandle> weights, int launches);

 private:
  MatmulTimer(Device& device, const MatmulKey& key, uint64_t memory_bytes,
              std::unique_ptr<Stream> stream)
      : device_(device), key_(key), memory_bytes_(memory_bytes), stream_(std::move(stream)) {}

  absl::Status Reserve(const Choice& choice, int64_t m);
  absl::Status Fill(Buffer& buffer, DType dtype, float low, float high);
  absl::Status Enqueue(const Choice& choice, int64_t m, std::span<const WeightHandle> weights,
                       int launches);
  // Null where the device does not record.
  std::unique_ptr<Graph> Record(const std::function<absl::Status()>& enqueue);

  Device& device_;
  const MatmulKey key_;
  const uint64_t memory_bytes_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Buffer> x_;
  std::unique_ptr<Buffer> scales_;
  std::unique_ptr<Buffer> y_;
  std::unique_ptr<Buffer> workspace_;
  size_t next_weight_ = 0;
  bool records_ = true;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_AUTOTUNE_MATMUL_TIMER_H_
