// A store over fake devices, and an observer that remembers the last numbers.
#ifndef NIBBLE_TESTS_UNIT_WEIGHT_STORE_STORE_FIXTURE_H_
#define NIBBLE_TESTS_UNIT_WEIGHT_STORE_STORE_FIXTURE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "server/weight_store/weight_store.h"
#include "tests/support/fake_device.h"

namespace nibble::server {

// A dense F32 weight; the fake device counts n * k bytes for it.
inline WeightSpec Spec(int64_t n, int64_t k = 10) {
  WeightSpec spec;
  spec.n = n;
  spec.k = k;
  spec.dtype = DType::kF32;
  return spec;
}

inline CanonicalWeight Canonical(const WeightSpec& spec) {
  CanonicalWeight weight;
  weight.spec = spec;
  weight.codes = HostBytes(std::vector<std::byte>(static_cast<size_t>(spec.n * spec.k * 4)));
  return weight;
}

class LastNumbers final : public WeightStoreObserver {
 public:
  void OnResidentBytes(size_t device_index, Format format, int64_t bytes) override {
    std::lock_guard lock(mutex_);
    bytes_[{device_index, format}] = bytes;
  }
  void OnWeights(size_t device_index, WeightState state, int64_t count) override {
    std::lock_guard lock(mutex_);
    weights_[{device_index, state}] = count;
  }
  int64_t bytes(size_t device_index, Format format = Format::kDense) {
    std::lock_guard lock(mutex_);
    return bytes_[{device_index, format}];
  }
  int64_t weights(size_t device_index, WeightState state) {
    std::lock_guard lock(mutex_);
    return weights_[{device_index, state}];
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<size_t, Format>, int64_t> bytes_;
  std::map<std::pair<size_t, WeightState>, int64_t> weights_;
};

class WeightStoreTest : public ::testing::Test {
 protected:
  using Transaction = std::unique_ptr<WeightStore::Transaction>;

  // "fake:0", "fake:1", ... with so many bytes each.
  void Start(const std::vector<uint64_t>& memory_bytes) {
    std::vector<Device*> devices;
    for (size_t i = 0; i < memory_bytes.size(); ++i) {
      devices_.push_back(
          std::make_unique<testing::FakeDevice>(fmt::format("fake:{}", i), memory_bytes[i]));
      devices.push_back(devices_.back().get());
    }
    store_ = std::make_unique<WeightStore>(devices, &observer_);
  }

  static std::vector<PlannedWeight> Plan(const std::vector<std::string>& names,
                                         const WeightSpec& spec = Spec(10)) {
    std::vector<PlannedWeight> planned;
    for (const std::string& name : names) planned.push_back({name, spec});
    return planned;
  }

  Transaction Begin(std::string_view model, std::vector<PlannedWeight> planned,
                    std::string_view device = "") {
    absl::StatusOr<Transaction> begun = store_->Begin(model, std::move(planned), device);
    EXPECT_TRUE(begun.ok()) << begun.status();
    return begun.ok() ? *std::move(begun) : nullptr;
  }

  // Begins, adds and commits.
  void Load(std::string_view model, const std::vector<PlannedWeight>& planned) {
    const Transaction transaction = Begin(model, planned);
    ASSERT_NE(transaction, nullptr);
    for (const PlannedWeight& weight : planned) {
      ASSERT_TRUE(transaction->Add(weight.name, Canonical(weight.spec)).ok());
    }
    ASSERT_TRUE(transaction->Commit().ok());
  }
  void Load(const std::string& name) { Load(name, Plan({name})); }

  WeightHandle Acquire(std::string_view name) {
    absl::StatusOr<WeightHandle> handle = store_->Acquire(name);
    EXPECT_TRUE(handle.ok()) << handle.status();
    return handle.ok() ? *std::move(handle) : nullptr;
  }
  absl::StatusCode AcquireCode(std::string_view name) {
    return store_->Acquire(name).status().code();
  }

  // What Unload's done was called with.
  struct Answer {
    int calls = 0;
    WeightStore::Unloaded unloaded;
  };
  absl::Status Unload(std::string_view name, std::shared_ptr<Answer> answer) {
    return store_->Unload(name, [answer](const WeightStore::Unloaded& unloaded) {
      ++answer->calls;
      answer->unloaded = unloaded;
    });
  }

  static std::string StateName(WeightState state) {
    switch (state) {
      case WeightState::kLoading:
        return "loading";
      case WeightState::kReady:
        return "ready";
      case WeightState::kDraining:
        return "draining";
      case WeightState::kFailed:
        return "failed";
    }
    return "?";
  }
  // "m/a:1:ready m/b:2:loading".
  std::string Listed(std::string_view prefix = "") {
    std::string text;
    for (const WeightInfo& info : store_->List(prefix)) {
      text += fmt::format("{}{}:{}:{}", text.empty() ? "" : " ", info.name, info.version,
                          StateName(info.state));
    }
    return text;
  }

  std::vector<std::unique_ptr<testing::FakeDevice>> devices_;
  LastNumbers observer_;
  std::unique_ptr<WeightStore> store_;
};

}  // namespace nibble::server

#endif  // NIBBLE_TESTS_UNIT_WEIGHT_STORE_STORE_FIXTURE_H_
