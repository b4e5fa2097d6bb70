// The server's side of a request: resident weights of every kind on a device of arithmetic alone.
#ifndef NIBBLE_TESTS_FUZZ_RESIDENT_WEIGHTS_H_
#define NIBBLE_TESTS_FUZZ_RESIDENT_WEIGHTS_H_

#include <string_view>

#include "server/executor/engine.h"
#include "server/weight_store/weight_store.h"
#include "tests/support/fake_device.h"

namespace nibble::fuzz {

// An engine that is asked for a device and never for work.
class IdleEngine final : public server::Engine {
 public:
  server::Batcher& batcher(size_t device_index) override;
  server::DeviceActivity activity(size_t) const override { return {}; }
  const server::TunedChoices* tuned(size_t) const override { return nullptr; }
  size_t LeastLoadedDevice() const override { return 0; }
  void StopAccepting() override {}
  void FailQueued(const absl::Status&) override {}
};

class ResidentWeights {
 public:
  // Loads "nf4" [24, 64], "int4" [16, 64] with zero points, "fp8" [8, 160] with an input scale,
  // "dense" [6, 64] and the vector "norm" [64].
  ResidentWeights();
  const server::WeightStore& store() const { return store_; }
  const server::Engine& engine() const { return engine_; }

 private:
  void Load(std::string_view name, const WeightSpec& spec);

  testing::FakeDevice device_;
  server::WeightStore store_;
  IdleEngine engine_;
};

}  // namespace nibble::fuzz

#endif  // NIBBLE_TESTS_FUZZ_RESIDENT_WEIGHTS_H_
