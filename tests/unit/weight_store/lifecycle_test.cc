// The states of a weight: each transition, and what can be had in each state.
#include "gmock/gmock.h"
#include "nibble/status.h"
#include "tests/unit/weight_store/store_fixture.h"

namespace nibble::server {
namespace {

using ::testing::HasSubstr;

TEST_F(WeightStoreTest, LoadsAndServes) {
  Start({1000});
  EXPECT_EQ(AcquireCode("w"), absl::StatusCode::kNotFound);

  Transaction transaction = Begin("w", Plan({"w"}));
  EXPECT_EQ(Listed(), "w:1:loading");
  EXPECT_EQ(devices_[0]->used_bytes(), 100u) << "reserved before anything is uploaded";
  absl::Status refused = store_->Acquire("w").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(MessageOf(refused)), HasSubstr("loading"));
  EXPECT_EQ(observer_.weights(0, WeightState::kLoading), 1);

  CanonicalWeight canonical = Canonical(Spec(10));
  canonical.input_scale = 0.5f;
  ASSERT_TRUE(transaction->Add("w", canonical).ok());
  EXPECT_EQ(AcquireCode("w"), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(transaction->Commit().ok());
  transaction.reset();

  const WeightHandle handle = Acquire("w");
  ASSERT_NE(handle, nullptr);
  EXPECT_EQ(handle->name(), "w");
  EXPECT_EQ(handle->version(), 1u);
  EXPECT_EQ(handle->device_index(), 0u);
  EXPECT_EQ(handle->weight().spec(), Spec(10));
  handle->counters().rows += 7;

  const absl::StatusOr<WeightInfo> info = store_->Describe("w");
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->state, WeightState::kReady);
  EXPECT_EQ(info->device_bytes, 100u);
  EXPECT_EQ(info->handles, 1);
  EXPECT_EQ(info->rows, 7u);
  EXPECT_EQ(info->input_scale, 0.5f);
  EXPECT_EQ(info->spec, Spec(10));
  EXPECT_EQ(devices_[0]->used_bytes(), 100u) << "the reservation is used, not added";
  EXPECT_EQ(observer_.weights(0, WeightState::kLoading), 0);
  EXPECT_EQ(observer_.weights(0, WeightState::kReady), 1);
  EXPECT_EQ(observer_.bytes(0), 100);
}

TEST_F(WeightStoreTest, GivesBackWhatTheReservationHasLeft) {
  Start({1000});
  Load("m", Plan({"m/a", "m/b"}));
  EXPECT_EQ(devices_[0]->used_bytes(), 200u);
  EXPECT_EQ(devices_[0]->live_weights(), 2);
}

TEST_F(WeightStoreTest, UnloadWithoutHandlesAnswersAtOnce) {
  Start({1000});
  Load("w");
  const auto answer = std::make_shared<Answer>();
  ASSERT_TRUE(Unload("w", answer).ok());
  EXPECT_EQ(answer->calls, 1);
  EXPECT_EQ(answer->unloaded.weights, 1);
  EXPECT_EQ(answer->unloaded.freed_bytes, 100);
  EXPECT_EQ(devices_[0]->used_bytes(), 0u);
  EXPECT_EQ(Listed(), "");
  EXPECT_EQ(AcquireCode("w"), absl::StatusCode::kNotFound);
  EXPECT_EQ(observer_.weights(0, WeightState::kReady), 0);
  EXPECT_EQ(observer_.weights(0, WeightState::kDraining), 0);
  EXPECT_EQ(observer_.bytes(0), 0);
  EXPECT_EQ(Unload("w", answer).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(answer->calls, 1);
}

TEST_F(WeightStoreTest, UnloadAnswersWhenTheLastHandleIsGoneAndTheMemoryFree) {
  Start({1000});
  Load("w");
  WeightHandle first = Acquire("w");
  WeightHandle second = Acquire("w");
  uint64_t used_when_answered = 1;
  ASSERT_TRUE(store_
                  ->Unload("w",
                           [&](const WeightStore::Unloaded&) {
                             used_when_answered = devices_[0]->used_bytes();
                           })
                  .ok());
  EXPECT_EQ(Listed(), "w:1:draining");
  const absl::Status refused = store_->Acquire("w").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(MessageOf(refused)), HasSubstr("draining"));
  EXPECT_EQ(store_->Describe("w")->handles, 2);
  EXPECT_EQ(observer_.weights(0, WeightState::kDraining), 1);
  first.reset();
  EXPECT_EQ(used_when_answered, 1u);
  EXPECT_EQ(second->weight().bytes(), 100u) << "a handle keeps the bytes alive";
  EXPECT_EQ(observer_.bytes(0), 100);
  second.reset();
  EXPECT_EQ(used_when_answered, 0u);
  EXPECT_EQ(Listed(), "");
  EXPECT_EQ(observer_.bytes(0), 0);
}

TEST_F(WeightStoreTest, ASecondUnloadWaitsToo) {
  Start({1000});
  Load("w");
  WeightHandle handle = Acquire("w");
  const auto first = std::make_shared<Answer>();
  const auto second = std::make_shared<Answer>();
  ASSERT_TRUE(Unload("w", first).ok());
  ASSERT_TRUE(Unload("w", second).ok());
  EXPECT_EQ(first->calls + second->calls, 0);
  handle.reset();
  EXPECT_EQ(first->calls, 1);
  EXPECT_EQ(second->calls, 1);
}

TEST_F(WeightStoreTest, UnloadOfAModelTakesAllBelowItAndNothingBeside) {
  Start({1000});
  Load("m", Plan({"m/a", "m/b/c"}));
  Load("m-x");
  Load("m.y");
  Load("mm");
  WeightHandle handle = Acquire("m/b/c");
  const auto answer = std::make_shared<Answer>();
  ASSERT_TRUE(Unload("m", answer).ok());
  EXPECT_EQ(answer->calls, 0);
  EXPECT_EQ(Listed("m/"), "m/b/c:2:draining");
  handle.reset();
  EXPECT_EQ(answer->calls, 1);
  EXPECT_EQ(answer->unloaded.weights, 2);
  EXPECT_EQ(answer->unloaded.freed_bytes, 200);
  EXPECT_EQ(Listed(), "m-x:3:ready m.y:4:ready mm:5:ready");
}

TEST_F(WeightStoreTest, ReloadMakesANewVersionAndDrainsTheOld) {
  Start({1000});
  Load("w");
  WeightHandle old = Acquire("w");
  old->counters().requests += 3;
  {
    const Transaction transaction = Begin("w", Plan({"w"}, Spec(20)));
    EXPECT_EQ(Listed(), "w:1:ready w:2:loading");
    EXPECT_EQ(Acquire("w")->version(), 1u) << "the old version serves until the commit";
    EXPECT_EQ(store_->Describe("w")->version, 1u);
    ASSERT_TRUE(transaction->Add("w", Canonical(Spec(20))).ok());
    ASSERT_TRUE(transaction->Commit().ok());
  }
  EXPECT_EQ(Listed(), "w:1:draining w:2:ready");
  WeightHandle fresh = Acquire("w");
  EXPECT_EQ(fresh->version(), 2u);
  EXPECT_EQ(fresh->weight().spec(), Spec(20));
  EXPECT_EQ(old->weight().spec(), Spec(10));
  EXPECT_EQ(devices_[0]->used_bytes(), 300u);
  fresh->counters().requests += 1;
  EXPECT_EQ(store_->Describe("w")->requests, 4u) << "a reload does not reset the counters";
  old.reset();
  EXPECT_EQ(Listed(), "w:2:ready");
  EXPECT_EQ(devices_[0]->used_bytes(), 200u);

  // Three versions at once, and an Unload that waits for all of them.
  Load("w", Plan({"w"}, Spec(5)));
  WeightHandle newest = Acquire("w");
  const auto answer = std::make_shared<Answer>();
  ASSERT_TRUE(Unload("w", answer).ok());
  EXPECT_EQ(Listed(), "w:2:draining w:3:draining");
  newest.reset();
  EXPECT_EQ(answer->calls, 0);
  fresh.reset();
  EXPECT_EQ(answer->calls, 1);
  EXPECT_EQ(answer->unloaded.weights, 1);
  EXPECT_EQ(answer->unloaded.freed_bytes, 250);
}

TEST_F(WeightStoreTest, CountersOutliveAnUnload) {
  Start({1000});
  Load("w");
  Acquire("w")->counters().batches += 5;
  ASSERT_TRUE(Unload("w", std::make_shared<Answer>()).ok());
  Load("w");
  EXPECT_EQ(store_->Describe("w")->batches, 5u);
}

TEST_F(WeightStoreTest, CommitIsAtomicOverAModelAndDrainsNamesItNoLongerHas) {
  Start({1000});
  Load("m", Plan({"m/a", "m/b"}));
  Load("m2");
  WeightHandle old_a = Acquire("m/a");
  WeightHandle old_b = Acquire("m/b");
  {
    const Transaction transaction = Begin("m", Plan({"m/a", "m/c"}));
    ASSERT_TRUE(transaction->Add("m/a", Canonical(Spec(10))).ok());
    EXPECT_EQ(transaction->Commit().code(), absl::StatusCode::kInternal) << "m/c is missing";
    EXPECT_EQ(Acquire("m/a")->version(), old_a->version());
    EXPECT_EQ(AcquireCode("m/c"), absl::StatusCode::kFailedPrecondition);
    ASSERT_TRUE(transaction->Add("m/c", Canonical(Spec(10))).ok());
    ASSERT_TRUE(transaction->Commit().ok());
  }
  EXPECT_EQ(Listed(), "m/a:1:draining m/a:4:ready m/b:2:draining m/c:5:ready m2:3:ready");
  EXPECT_EQ(AcquireCode("m/b"), absl::StatusCode::kFailedPrecondition);
  old_a.reset();
  old_b.reset();
  EXPECT_EQ(Listed(), "m/a:4:ready m/c:5:ready m2:3:ready");
}

TEST_F(WeightStoreTest, AModelReplacesASingleWeightOfItsName) {
  Start({1000});
  Load("m");
  Load("m", Plan({"m/a"}));
  EXPECT_EQ(Listed(), "m/a:2:ready");
  Load("m");
  EXPECT_EQ(Listed(), "m:3:ready");
  EXPECT_EQ(devices_[0]->used_bytes(), 100u);
}

TEST_F(WeightStoreTest, UnloadIsRefusedWhileLoading) {
  Start({1000});
  Load("m", Plan({"m/a"}));
  const auto answer = std::make_shared<Answer>();
  {
    const Transaction transaction = Begin("m", Plan({"m/a"}));
    EXPECT_EQ(Unload("m", answer).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(Unload("m/a", answer).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(Unload("other", answer).code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(Listed(), "m/a:1:ready m/a:2:loading");
  }
  EXPECT_TRUE(Unload("m", answer).ok());
  EXPECT_EQ(answer->calls, 1);
}

TEST_F(WeightStoreTest, ListsByPrefixInOrder) {
  Start({1000});
  Load("b", Plan({"b/2", "b/1"}));
  Load("a");
  Load("ba");
  EXPECT_EQ(Listed(), "a:3:ready b/1:2:ready b/2:1:ready ba:4:ready");
  EXPECT_EQ(Listed("b"), "b/1:2:ready b/2:1:ready ba:4:ready");
  EXPECT_EQ(Listed("b/2"), "b/2:1:ready");
  EXPECT_EQ(Listed("c"), "");
  EXPECT_EQ(store_->Describe("c").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(WeightStoreTest, FreesMemoryWithoutALock) {
  Start({1000});
  Load("w");
  std::string seen;
  devices_[0]->OnFree([&] { seen = Listed(); });
  WeightHandle handle = Acquire("w");
  bool loaded_again = false;
  ASSERT_TRUE(store_
                  ->Unload("w",
                           [&](const WeightStore::Unloaded&) {
                             devices_[0]->OnFree(nullptr);
                             Load("w");
                             loaded_again = true;
                           })
                  .ok());
  handle.reset();
  EXPECT_EQ(seen, "w:1:draining");
  EXPECT_TRUE(loaded_again);
  EXPECT_EQ(Listed(), "w:2:ready");
}

TEST_F(WeightStoreTest, WorksWithoutAnObserver) {
  testing::FakeDevice device("fake:0", 1000);
  store_ = std::make_unique<WeightStore>(std::vector<Device*>{&device}, nullptr);
  Load("w");
  EXPECT_TRUE(Unload("w", std::make_shared<Answer>()).ok());
  Load("w");
  store_.reset();
  EXPECT_EQ(device.used_bytes(), 0u) << "a store frees what it holds";
}

TEST(ValidateWeightNameTest, AcceptsAndRefuses) {
  for (const std::string name :
       {"a", "Z9", "model.layers.0.mlp.down_proj", "m/x-1/y_2", "...", ".a", "a..b/c"}) {
    EXPECT_TRUE(ValidateWeightName(name).ok()) << name;
  }
  EXPECT_TRUE(ValidateWeightName(std::string(256, 'x')).ok());
  for (const std::string name : {"", "/", "/a", "a/", "a//b", ".", "..", "a/./b", "a/..", "../a",
                                 "a b", "a\\b", "a\n", "\xc3\xa4", "a:b", "a*"}) {
    EXPECT_EQ(ValidateWeightName(name).code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(ValidateWeightName(std::string(257, 'x')).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ValidateWeightName(std::string_view("a\0b", 3)).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::server
