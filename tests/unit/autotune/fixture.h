// Weights that serve on a scripted device, and a gate that a test opens and closes.
#ifndef NIBBLE_TESTS_UNIT_AUTOTUNE_FIXTURE_H_
#define NIBBLE_TESTS_UNIT_AUTOTUNE_FIXTURE_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/autotune/tuning.h"
#include "server/weight_store/weight_store.h"
#include "tests/support/fake_clock.h"
#include "tests/support/scripted_device.h"

namespace nibble::server {

class TuningFixture : public ::testing::Test {
 protected:
  using Launch = testing::ScriptedDevice::Launch;

  void Start(testing::ScriptedDevice::Script script, BackendKind kind = BackendKind::kCpu) {
    device_ = std::make_unique<testing::ScriptedDevice>(kind, clock_, std::move(script));
    store_ = std::make_unique<WeightStore>(std::vector<Device*>{device_.get()}, nullptr);
  }
  // cpu_gemv takes 10 us a row, cpu_gemm 55 us.
  static StatusOr<double> CrossingAtSix(const Launch& launch) {
    return launch.kernel == "cpu_gemv" ? 10.0 * static_cast<double>(launch.m) : 55.0;
  }

  static WeightSpec Spec() {
    WeightSpec spec;
    spec.n = 16;
    spec.k = 32;
    return spec;
  }
  static MatmulKey Key() {
    MatmulKey key;
    key.weight = Spec();
    return key;
  }
  void Load(const std::string& name) {
    auto load = store_->Begin(name, {{name, Spec()}}, "");
    ASSERT_TRUE(load.ok()) << load.status();
    CanonicalWeight weight;
    weight.spec = Spec();
    ASSERT_TRUE((*load)->Add(name, weight).ok());
    ASSERT_TRUE((*load)->Commit().ok());
  }

  testing::FakeClock clock_;
  std::unique_ptr<testing::ScriptedDevice> device_;
  std::unique_ptr<WeightStore> store_;
};

}  // namespace nibble::server

#endif  // NIBBLE_TESTS_UNIT_AUTOTUNE_FIXTURE_H_
