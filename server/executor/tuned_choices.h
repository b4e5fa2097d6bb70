// The measured kernel choices of devices that are alike, shared by those who run batches, those who
// measure and those who explain.
#ifndef NIBBLE_SERVER_EXECUTOR_TUNED_CHOICES_H_
#define NIBBLE_SERVER_EXECUTOR_TUNED_CHOICES_H_

#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nibble/measured.h"

namespace nibble::server {

// Thread safe.
class TunedChoices {
 public:
  // Bounds the memory that shapes which come and go take: further ones keep the built-in table.
  static constexpr size_t kMaxKeys = 4096;

  // The choice for a batch. A matmul of a key that nobody has measured is asked for, once.
  Choice SelectFor(const Problem& problem, const DeviceInfo& device);

  std::optional<MeasuredMatmul> Find(const MatmulKey& key) const;
  // Whether the key was measured, or given up.
  bool Settled(const MatmulKey& key) const;
  void Put(const MatmulKey& key, MeasuredMatmul measured);
  // The key keeps the built-in table.
  void GiveUp(const MatmulKey& key);
  std::vector<std::pair<MatmulKey, MeasuredMatmul>> All() const;

  // Keys that batches had and nobody has settled.
  std::vector<MatmulKey> Wanted() const;
  // Called when there is one more of these, with a lock held: it must not call back. Empty: nobody.
  void OnWanted(std::function<void()> on_wanted);

 private:
  mutable std::mutex mutex_;
  MeasuredTable table_;
  // Not measured; true where given up.
  std::unordered_map<MatmulKey, bool, MatmulKeyHash> others_;
  std::function<void()> on_wanted_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_EXECUTOR_TUNED_CHOICES_H_
