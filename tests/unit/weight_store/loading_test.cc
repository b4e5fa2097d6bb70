// Loading: what Begin refuses, where weights are placed, and how a load fails.
#include "gmock/gmock.h"
#include "nibble/status.h"
#include "tests/unit/weight_store/store_fixture.h"

namespace nibble::server {
namespace {

using ::testing::HasSubstr;

class WeightStoreLoadTest : public WeightStoreTest {
 protected:
  absl::Status BeginStatus(std::string_view model, std::vector<PlannedWeight> planned,
                           std::string_view device = "") {
    return store_->Begin(model, std::move(planned), device).status();
  }
  size_t DeviceOf(std::string_view name) { return store_->Describe(name)->device_index; }
};

TEST_F(WeightStoreLoadTest, RefusesBadPlans) {
  Start({1000});
  WeightSpec no_rows = Spec(0);
  const struct {
    std::string_view model;
    std::vector<PlannedWeight> planned;
    std::string_view device;
    std::string_view message;
  } cases[] = {
      {"", Plan({"a"}), "", "name"},
      {"a/../b", Plan({"a/../b"}), "", "component"},
      {"m", {}, "", "at least one weight"},
      {"m", Plan({"m/a", "m//b"}), "", "component"},
      {"m", Plan({"n/a"}), "", "'n/a'"},
      {"m", Plan({"mm"}), "", "'mm'"},
      {"m", Plan({"m/a", "m/b", "m/a"}), "", "planned twice"},
      {"m", Plan({"m/a"}, no_rows), "", "'m/a'"},
      {"m", Plan({"m/a"}), "fake:7", "fake:0"},
  };
  for (const auto& bad : cases) {
    const absl::Status status = BeginStatus(bad.model, bad.planned, bad.device);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(MessageOf(status)), HasSubstr(std::string(bad.message)));
  }
  EXPECT_EQ(Listed(), "");
  EXPECT_EQ(devices_[0]->used_bytes(), 0u);
  Load("m", Plan({"m/a"}));
}

TEST_F(WeightStoreLoadTest, OneLoadOfAModelAtATime) {
  Start({1000});
  {
    const Transaction transaction = Begin("m/x", Plan({"m/x/a"}));
    for (const std::string model : {"m/x", "m", "m/x/a"}) {
      EXPECT_EQ(BeginStatus(model, Plan({model + "/a"})).code(),
                absl::StatusCode::kFailedPrecondition)
          << model;
    }
    Load("m/y");
    Load("m/xx");
  }
  Load("m/x", Plan({"m/x/a"}));
}

TEST_F(WeightStoreLoadTest, ARefusedBeginLeavesTheNameFree) {
  Start({99});
  const absl::Status status = BeginStatus("w", Plan({"w"}));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(MessageOf(status)), HasSubstr("'w' needs 100 bytes; fake:0 has 99"));
  EXPECT_EQ(Listed(), "");
  EXPECT_EQ(AcquireCode("w"), absl::StatusCode::kNotFound);
  Load("w", Plan({"w"}, Spec(9)));
}

TEST_F(WeightStoreLoadTest, PlacesTheLargestFirstOnTheDeviceWithMostFreeMemory) {
  Start({500, 900, 700});
  std::vector<PlannedWeight> planned = {{"m/s", Spec(10)},  {"m/l", Spec(40)}, {"m/m", Spec(30)},
                                        {"m/xl", Spec(50)}, {"m/t", Spec(5)},  {"m/u", Spec(5)}};
  Load("m", planned);
  // free: 500 900 700
  EXPECT_EQ(DeviceOf("m/xl"), 1u);  // 500 400 700
  EXPECT_EQ(DeviceOf("m/l"), 2u);   // 500 400 300
  EXPECT_EQ(DeviceOf("m/m"), 0u);   // 200 400 300
  EXPECT_EQ(DeviceOf("m/s"), 1u);   // 200 300 300
  EXPECT_EQ(DeviceOf("m/t"), 1u);   // 200 250 300
  EXPECT_EQ(DeviceOf("m/u"), 2u);
  EXPECT_EQ(devices_[0]->used_bytes(), 300u);
  EXPECT_EQ(devices_[1]->used_bytes(), 650u);
  EXPECT_EQ(devices_[2]->used_bytes(), 450u);
  EXPECT_EQ(observer_.bytes(1), 650);
  EXPECT_EQ(observer_.weights(2, WeightState::kReady), 2);
  EXPECT_EQ(Acquire("m/m")->device_index(), 0u);
}

TEST_F(WeightStoreLoadTest, HonoursReservationsOfLoadsUnderWay) {
  Start({1000, 900});
  const Transaction a = Begin("a", Plan({"a"}, Spec(60)));
  EXPECT_EQ(DeviceOf("a"), 0u);
  const Transaction b = Begin("b", Plan({"b"}, Spec(60)));
  EXPECT_EQ(DeviceOf("b"), 1u);
  EXPECT_EQ(BeginStatus("c", Plan({"c"}, Spec(41))).code(), absl::StatusCode::kResourceExhausted);
  const Transaction c = Begin("c", Plan({"c"}, Spec(40)));
  EXPECT_EQ(devices_[0]->used_bytes(), 1000u);
  for (const auto& [transaction, name, n] :
       {std::tuple(&a, "a", 60), std::tuple(&b, "b", 60), std::tuple(&c, "c", 40)}) {
    EXPECT_TRUE((*transaction)->Add(name, Canonical(Spec(n))).ok());
    EXPECT_TRUE((*transaction)->Commit().ok());
  }
}

TEST_F(WeightStoreLoadTest, LeavesTheShareOfTheRequestsFree) {
  Start({1000});
  WeightStore store({devices_[0].get()}, nullptr, /*request_share=*/10);
  const auto refused = store.Begin("a", Plan({"a"}, Spec(91)), "");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(store.Begin("a", Plan({"a"}, Spec(90)), "").ok());
}

TEST_F(WeightStoreLoadTest, ADeviceHintIsKeptTo) {
  Start({1000, 200, 1000});
  const Transaction transaction = Begin("m", Plan({"m/a", "m/b"}), "fake:1");
  EXPECT_EQ(DeviceOf("m/a"), 1u);
  EXPECT_EQ(DeviceOf("m/b"), 1u);
  const absl::Status status = BeginStatus("n", Plan({"n/a"}), "fake:1");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << "others are not fallen back on";
}

TEST_F(WeightStoreLoadTest, LostDevicesAreNotUsed) {
  Start({500, 1000});
  devices_[1]->SetHealth(absl::UnavailableError("device lost"));
  Load("w");
  EXPECT_EQ(DeviceOf("w"), 0u);
  EXPECT_EQ(BeginStatus("v", Plan({"v"}), "fake:1").code(), absl::StatusCode::kUnavailable);
  devices_[0]->SetHealth(absl::UnavailableError("device lost"));
  EXPECT_EQ(BeginStatus("v", Plan({"v"})).code(), absl::StatusCode::kUnavailable);
  WeightStore empty({}, nullptr);
  EXPECT_EQ(empty.Begin("v", Plan({"v"}), "").status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(WeightStoreLoadTest, AReservationThatFailsGivesTheOthersBack) {
  Start({1000, 1000});
  devices_[1]->FailReserve(absl::ResourceExhaustedError("fragmented"));
  EXPECT_EQ(BeginStatus("m", Plan({"m/a", "m/b"})).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(devices_[0]->used_bytes(), 0u);
  devices_[1]->FailReserve(absl::OkStatus());
  Load("m", Plan({"m/a", "m/b"}));
}

TEST_F(WeightStoreLoadTest, AFailedUploadLeavesNothingBehind) {
  Start({1000});
  Load("keep");
  const uint64_t used_before = devices_[0]->used_bytes();
  {
    const Transaction transaction = Begin("m", Plan({"m/a", "m/b", "m/c"}));
    devices_[0]->FailUploadAfter(1, absl::InternalError("copy failed"));
    ASSERT_TRUE(transaction->Add("m/a", Canonical(Spec(10))).ok());
    EXPECT_EQ(transaction->Add("m/b", Canonical(Spec(10))).code(), absl::StatusCode::kInternal);
    EXPECT_EQ(transaction->Commit().code(), absl::StatusCode::kInternal);
  }
  EXPECT_EQ(devices_[0]->used_bytes(), used_before);
  EXPECT_EQ(devices_[0]->live_weights(), 1);
  EXPECT_EQ(Listed("m"), "m/a:2:failed m/b:3:failed m/c:4:failed");
  for (const std::string_view name : {"m/a", "m/b", "m/c"}) {
    const absl::Status status = store_->Acquire(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(MessageOf(status)), HasSubstr("copy failed"));
    EXPECT_THAT(store_->Describe(name)->error, HasSubstr("INTERNAL: copy failed"));
    EXPECT_EQ(store_->Describe(name)->device_bytes, 0u);
  }
  EXPECT_EQ(observer_.weights(0, WeightState::kFailed), 3);
  EXPECT_EQ(observer_.weights(0, WeightState::kLoading), 0);
  EXPECT_EQ(observer_.bytes(0), 100);

  Load("m", Plan({"m/a"}));
  EXPECT_EQ(Listed("m"), "m/a:5:ready") << "a load that works clears what failed before it";
  EXPECT_EQ(observer_.weights(0, WeightState::kFailed), 0);
}

TEST_F(WeightStoreLoadTest, AnUploadMayBeTriedAgain) {
  Start({1000});
  const Transaction transaction = Begin("w", Plan({"w"}));
  devices_[0]->FailUploadAfter(0, absl::UnavailableError("busy"));
  EXPECT_FALSE(transaction->Add("w", Canonical(Spec(10))).ok());
  EXPECT_TRUE(transaction->Add("w", Canonical(Spec(10))).ok());
  EXPECT_TRUE(transaction->Commit().ok());
}

TEST_F(WeightStoreLoadTest, TheReasonGivenIsTheOneReported) {
  Start({1000});
  {
    const Transaction transaction = Begin("w", Plan({"w"}));
    EXPECT_FALSE(transaction->Add("x", Canonical(Spec(10))).ok());
    transaction->Fail(absl::NotFoundError("no such file"));
    EXPECT_FALSE(transaction->Add("x", Canonical(Spec(10))).ok());
  }
  EXPECT_THAT(store_->Describe("w")->error, HasSubstr("NOT_FOUND: no such file"));
  Begin("w", Plan({"w"})).reset();
  EXPECT_THAT(store_->Describe("w")->error, HasSubstr("CANCELLED"));
  EXPECT_EQ(Listed(), "w:2:failed") << "one failure a name";
}

TEST_F(WeightStoreLoadTest, AFailedReloadLeavesTheOldVersionServing) {
  Start({1000});
  Load("w");
  Begin("w", Plan({"w"})).reset();
  EXPECT_EQ(Listed(), "w:1:ready w:2:failed");
  EXPECT_EQ(Acquire("w")->version(), 1u);
  EXPECT_EQ(store_->Describe("w")->state, WeightState::kReady);
  EXPECT_EQ(devices_[0]->used_bytes(), 100u);
}

TEST_F(WeightStoreLoadTest, UnloadForgetsFailures) {
  Start({1000});
  Begin("m", Plan({"m/a"})).reset();
  const auto answer = std::make_shared<Answer>();
  ASSERT_TRUE(Unload("m", answer).ok());
  EXPECT_EQ(answer->calls, 1);
  EXPECT_EQ(answer->unloaded.weights, 0);
  EXPECT_EQ(answer->unloaded.freed_bytes, 0);
  EXPECT_EQ(Listed(), "");
  EXPECT_EQ(observer_.weights(0, WeightState::kFailed), 0);
}

TEST_F(WeightStoreLoadTest, TheOldestFailuresAreForgotten) {
  Start({1000});
  constexpr size_t kMax = WeightStore::kMaxFailedRemembered;
  Begin("again", Plan({"again"})).reset();
  for (size_t i = 0; i < kMax - 1; ++i) {
    const std::string name = fmt::format("w{}", i);
    Begin(name, Plan({name})).reset();
  }
  EXPECT_EQ(store_->List("").size(), kMax);
  Begin("again", Plan({"again"})).reset();  // now the newest
  Begin("last", Plan({"last"})).reset();
  EXPECT_EQ(store_->List("").size(), kMax);
  EXPECT_EQ(AcquireCode("w0"), absl::StatusCode::kNotFound);
  EXPECT_EQ(AcquireCode("w1"), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(AcquireCode("again"), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(observer_.weights(0, WeightState::kFailed), static_cast<int64_t>(kMax));
}

TEST_F(WeightStoreLoadTest, AFailedModelLargerThanTheMemoryOfFailures) {
  Start({1 << 20});
  std::vector<std::string> names;
  for (size_t i = 0; i < WeightStore::kMaxFailedRemembered + 40; ++i) {
    names.push_back(fmt::format("m/{:03}", i));
  }
  Begin("m", Plan(names)).reset();
  const std::vector<WeightInfo> infos = store_->List("");
  ASSERT_EQ(infos.size(), WeightStore::kMaxFailedRemembered);
  EXPECT_EQ(infos.front().name, "m/040");
  EXPECT_EQ(devices_[0]->used_bytes(), 0u);
}

TEST_F(WeightStoreLoadTest, AddRefusesWhatWasNotPlanned) {
  Start({1000});
  const Transaction transaction = Begin("m", Plan({"m/a"}));
  EXPECT_EQ(transaction->Add("m/b", Canonical(Spec(10))).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(transaction->Add("m/a", Canonical(Spec(11))).code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(transaction->Add("m/a", Canonical(Spec(10))).ok());
  EXPECT_EQ(transaction->Add("m/a", Canonical(Spec(10))).code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(transaction->Commit().ok());
  EXPECT_EQ(transaction->Commit().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(transaction->Add("m/a", Canonical(Spec(10))).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(devices_[0]->live_weights(), 1);
}

}  // namespace
}  // namespace nibble::server
