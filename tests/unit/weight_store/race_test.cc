// Threads against each other, for ThreadSanitizer. Counts are fixed, nothing sleeps.
#include <atomic>
#include <thread>

#include "tests/unit/weight_store/store_fixture.h"

namespace nibble::server {
namespace {

TEST_F(WeightStoreTest, WeightsOfOneModelAreAddedFromSeveralThreads) {
  Start({100000, 100000});
  std::vector<std::string> names;
  for (int i = 0; i < 8; ++i) names.push_back(fmt::format("m/{}", i));
  const Transaction transaction = Begin("m", Plan(names));
  for (const auto& device : devices_) device->HoldUploads();
  std::vector<std::thread> threads;
  for (const std::string& name : names) {
    threads.emplace_back(
        [&, name] { EXPECT_TRUE(transaction->Add(name, Canonical(Spec(10))).ok()); });
  }
  for (const auto& device : devices_) device->WaitForHeldUploads(4);
  // All eight are under way at once: nothing that is not yet there can be committed or added twice.
  EXPECT_EQ(transaction->Commit().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(transaction->Add("m/0", Canonical(Spec(10))).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AcquireCode("m/0"), absl::StatusCode::kFailedPrecondition)
      << "the store answers while uploads block";
  for (const auto& device : devices_) device->ReleaseUploads();
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(transaction->Commit().ok());
  EXPECT_EQ(devices_[0]->used_bytes() + devices_[1]->used_bytes(), 800u);
}

TEST_F(WeightStoreTest, AcquireReloadAndUnloadStorm) {
  constexpr int kRounds = 300;
  Start({100000, 100000});
  Load("m", Plan({"m/a", "m/b"}));
  std::atomic<bool> stop{false};
  std::atomic<int> answered{0}, accepted{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      std::vector<WeightHandle> kept;
      while (!stop) {
        for (const std::string_view name : {"m/a", "m/b"}) {
          absl::StatusOr<WeightHandle> handle = store_->Acquire(name);
          if (!handle.ok()) continue;
          EXPECT_EQ((*handle)->name(), name);
          EXPECT_EQ((*handle)->weight().bytes(), 100u);
          (*handle)->counters().requests += 1;
          kept.push_back(*std::move(handle));
        }
        if (kept.size() > 16) kept.erase(kept.begin(), kept.begin() + 9);
        for (const WeightInfo& info : store_->List("m")) EXPECT_GE(info.handles, 0);
      }
    });
  }
  threads.emplace_back([&] {
    for (int round = 0; round < kRounds; ++round) {
      absl::StatusOr<Transaction> begun = store_->Begin("m", Plan({"m/a", "m/b"}), "");
      if (!begun.ok()) continue;
      EXPECT_TRUE((*begun)->Add("m/a", Canonical(Spec(10))).ok());
      if (round % 4 == 3) continue;  // abandoned halfway
      EXPECT_TRUE((*begun)->Add("m/b", Canonical(Spec(10))).ok());
      EXPECT_TRUE((*begun)->Commit().ok());
    }
    stop = true;
  });
  threads.emplace_back([&] {
    while (!stop) {
      const absl::Status status =
          store_->Unload("m", [&](const WeightStore::Unloaded&) { ++answered; });
      if (status.ok()) ++accepted;
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered.load(), accepted.load()) << "every Unload was answered, once";

  const absl::Status status = Unload("m", std::make_shared<Answer>());
  EXPECT_TRUE(status.ok() || absl::IsNotFound(status)) << status;
  EXPECT_EQ(Listed(), "");
  for (size_t i = 0; i < devices_.size(); ++i) {
    EXPECT_EQ(devices_[i]->used_bytes(), 0u);
    EXPECT_EQ(devices_[i]->live_weights(), 0);
    EXPECT_EQ(observer_.bytes(i), 0);
    for (const WeightState state : {WeightState::kLoading, WeightState::kReady,
                                    WeightState::kDraining, WeightState::kFailed}) {
      EXPECT_EQ(observer_.weights(i, state), 0);
    }
  }
}

TEST_F(WeightStoreTest, ConcurrentLoadsNeverTakeMoreThanThereIs) {
  Start({500, 300});
  std::atomic<int> loaded{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < 5; ++j) {
        const std::string name = fmt::format("w{}-{}", i, j);
        absl::StatusOr<Transaction> begun = store_->Begin(name, Plan({name}), "");
        if (!begun.ok()) {
          EXPECT_TRUE(absl::IsResourceExhausted(begun.status())) << begun.status();
          continue;
        }
        EXPECT_TRUE((*begun)->Add(name, Canonical(Spec(10))).ok());
        EXPECT_TRUE((*begun)->Commit().ok());
        ++loaded;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(loaded.load(), 8);
  EXPECT_EQ(devices_[0]->used_bytes(), 500u);
  EXPECT_EQ(devices_[1]->used_bytes(), 300u);
}

}  // namespace
}  // namespace nibble::server
