#include "server/autotune/autotuner.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

#include "fmt/format.h"
#include "server/autotune/cache_file.h"
#include "tests/unit/autotune/fixture.h"

namespace nibble::server {
namespace {

class AutotunerTest : public TuningFixture {
 protected:
  AutotunerTest() {
    options_.limits.max_rows = 64;
    options_.quiet = std::chrono::milliseconds(0);
    options_.build = "build 1";
    options_.cache_file =
        fmt::format("{}/autotuner-{}-{}.json", ::testing::TempDir(), getpid(),
                    ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  ~AutotunerTest() override {
    autotuner_.reset();
    std::remove(options_.cache_file.c_str());
  }

  void StartAutotuner() {
    tuned_ = MakeTunedChoices({device_.get()});
    autotuner_ = Autotuner::Start(
        options_, *store_, tuned_,
        [this](size_t) {
          return DeviceActivity{pending_.load(), batches_.load()};
        },
        clock_);
  }
  void LoadAndTell(const std::string& name) {
    Load(name);
    autotuner_->OnWeights(0, WeightState::kReady, 1);
  }
  // Lets time go by until `done`.
  template <typename Done>
  void Until(Done done) {
    while (!done()) {
      // The tuner waits, and nothing else moves the clock.
      if (clock_.pending_timers() > 0) clock_.AdvanceTo(clock_.next_timer());
      std::this_thread::yield();
    }
  }
  // Lets the tuner look at the device so many times that is busy.
  void LetItLook(int times) {
    for (int i = 0; i < times; ++i) {
      while (clock_.pending_timers() == 0) std::this_thread::yield();
      clock_.AdvanceTo(clock_.next_timer());
    }
  }
  void UntilSettled(const MatmulKey& key = Key()) {
    Until([&] { return tuned_[0]->Settled(key); });
  }
  std::string_view KernelFor(int64_t m) {
    return tuned_[0]->SelectFor(ProblemOf(Key(), m), device_->info()).kernel;
  }
  std::string CacheText() const {
    std::ifstream file(options_.cache_file);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // Tunes and ends, so that the cache is there.
  void FillCache() {
    Start(CrossingAtSix);
    StartAutotuner();
    LoadAndTell("w");
    UntilSettled();
    autotuner_->Stop();
  }
  // A server that starts anew on the same device.
  void StartAgain() {
    autotuner_.reset();
    store_.reset();
    Start(CrossingAtSix);
    StartAutotuner();
  }

  AutotuneOptions options_;
  std::atomic<int64_t> pending_{0};
  std::atomic<uint64_t> batches_{0};
  std::vector<std::shared_ptr<TunedChoices>> tuned_;
  std::unique_ptr<Autotuner> autotuner_;
};

TEST_F(AutotunerTest, AWeightThatServesIsMeasuredAndItsChoicesChange) {
  Start(CrossingAtSix);
  StartAutotuner();
  EXPECT_EQ(KernelFor(6), "cpu_gemv");
  LoadAndTell("w");
  UntilSettled();
  EXPECT_EQ(KernelFor(5), "cpu_gemv");
  EXPECT_EQ(KernelFor(6), "cpu_gemm");
  EXPECT_EQ(tuned_[0]->Find(Key())->rows.size(), 9u);
}

TEST_F(AutotunerTest, AKeyOfABatchIsMeasuredToo) {
  Start(CrossingAtSix);
  StartAutotuner();
  LoadAndTell("w");
  UntilSettled();
  MatmulKey other = Key();
  other.output = DType::kF32;
  tuned_[0]->SelectFor(ProblemOf(other, 3), device_->info());
  UntilSettled(other);
  EXPECT_TRUE(tuned_[0]->Find(other).has_value());
}

TEST_F(AutotunerTest, AShapeIsMeasuredOnce) {
  FillCache();
  const size_t launches = device_->launches().size();
  StartAgain();
  LoadAndTell("v");
  LoadAndTell("w");
  UntilSettled();
  autotuner_->Stop();
  EXPECT_EQ(device_->launches().size(), 0u);
  EXPECT_GT(launches, 0u);
}

TEST_F(AutotunerTest, TheCacheHoldsForTheNextStart) {
  FillCache();
  const std::vector<MeasuredRows> rows = tuned_[0]->Find(Key())->rows;
  StartAgain();
  EXPECT_TRUE(tuned_[0]->Settled(Key()));
  EXPECT_EQ(tuned_[0]->Find(Key())->rows, rows);
  EXPECT_EQ(KernelFor(6), "cpu_gemm");
}

TEST_F(AutotunerTest, ACacheOfAnotherBuildIsIgnored) {
  FillCache();
  options_.build = "build 2";
  ::testing::internal::CaptureStderr();
  StartAgain();
  EXPECT_FALSE(tuned_[0]->Settled(Key()));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, ::testing::HasSubstr("its_build=\"build 1\" build=\"build 2\""));
  LoadAndTell("w");
  UntilSettled();
  autotuner_->Stop();
  EXPECT_THAT(CacheText(), ::testing::HasSubstr("build 2"));
}

TEST_F(AutotunerTest, ACacheOfAnotherDeviceIsIgnored) {
  FillCache();
  autotuner_.reset();
  store_.reset();
  Start(CrossingAtSix);
  device_->Rename("another device");
  ::testing::internal::CaptureStderr();
  StartAutotuner();
  EXPECT_FALSE(tuned_[0]->Settled(Key()));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, ::testing::HasSubstr("its_device=\"a scripted device, 1 cores\" "
                                        "device=\"another device, 1 cores\""));
}

TEST_F(AutotunerTest, AMalformedCacheIsRefusedAndLeftAlone) {
  for (const char* text : {"", "{", "[[[[", "{\"format\":1,\"build\":\"build 1\",\"devices\":7}"}) {
    std::ofstream(options_.cache_file) << text;
    Start(CrossingAtSix);
    StartAutotuner();
    EXPECT_FALSE(tuned_[0]->Settled(Key()));
    LoadAndTell("w");
    UntilSettled();
    autotuner_.reset();
    store_.reset();
    if (*text == '\0') {
      EXPECT_TRUE(ParseTuningCache(CacheText()).ok()) << "an empty file is none yet";
    } else {
      EXPECT_EQ(CacheText(), text);
    }
  }
}

TEST_F(AutotunerTest, ACacheThatCannotBeWrittenIsDoneWithout) {
  options_.cache_file = ::testing::TempDir() + "/no/such/directory/cache.json";
  Start(CrossingAtSix);
  StartAutotuner();
  LoadAndTell("w");
  UntilSettled();
  EXPECT_EQ(KernelFor(6), "cpu_gemm");
}

TEST_F(AutotunerTest, NothingIsLaunchedWhileRequestsArePending) {
  Start(CrossingAtSix);
  StartAutotuner();
  pending_ = 1;
  LoadAndTell("w");
  LetItLook(20);
  EXPECT_EQ(device_->launches().size(), 0u);
  pending_ = 0;
  UntilSettled();
  EXPECT_GT(device_->launches().size(), 0u);
}

TEST_F(AutotunerTest, ARequestInBetweenStopsItUntilTheDeviceIsIdle) {
  Start([&](const Launch& launch) {
    if (device_->launches().size() == 10) pending_ = 1;
    return CrossingAtSix(launch);
  });
  StartAutotuner();
  LoadAndTell("w");
  LetItLook(20);
  const size_t launches = device_->launches().size();
  LetItLook(20);
  EXPECT_EQ(device_->launches().size(), launches);
  pending_ = 0;
  UntilSettled();
  EXPECT_EQ(KernelFor(6), "cpu_gemm");
}

TEST_F(AutotunerTest, WaitsForAQuietTimeAfterEveryBatch) {
  options_.quiet = std::chrono::milliseconds(50);
  Start(CrossingAtSix);
  StartAutotuner();
  LoadAndTell("w");
  for (int batch = 0; batch < 20; ++batch) {
    ++batches_;  // one that came and went
    LetItLook(1);
  }
  EXPECT_EQ(device_->launches().size(), 0u);
  UntilSettled();
}

TEST_F(AutotunerTest, WaitsForLoadsToEnd) {
  Start(CrossingAtSix);
  StartAutotuner();
  autotuner_->OnWeights(0, WeightState::kLoading, 3);
  LoadAndTell("w");
  LetItLook(20);
  EXPECT_EQ(device_->launches().size(), 0u);
  autotuner_->OnWeights(0, WeightState::kLoading, 0);
  UntilSettled();
}

TEST_F(AutotunerTest, StopsWhileItWaits) {
  Start(CrossingAtSix);
  StartAutotuner();
  pending_ = 1;
  LoadAndTell("w");
  LetItLook(1);
  autotuner_->Stop();
  autotuner_->Stop();
  EXPECT_EQ(device_->launches().size(), 0u);
}

TEST_F(AutotunerTest, StopsWithTheLaunchUnderWay) {
  std::atomic<bool> launched{false};
  std::atomic<bool> stopping{false};
  Start([&](const Launch& launch) {
    if (device_->launches().size() == 10) {
      launched = true;
      while (!stopping) std::this_thread::yield();
    }
    return CrossingAtSix(launch);
  });
  StartAutotuner();
  LoadAndTell("w");
  Until([&] { return launched.load(); });
  stopping = true;
  autotuner_->Stop();
  EXPECT_EQ(device_->used_bytes(), 0u);
}

TEST_F(AutotunerTest, ALostDeviceIsLeftAlone) {
  Start([&](const Launch&) -> StatusOr<double> {
    device_->Lose(absl::UnavailableError("lost"));
    return absl::UnavailableError("lost");
  });
  StartAutotuner();
  LoadAndTell("w");
  UntilSettled();
  autotuner_->OnWeights(0, WeightState::kReady, 1);
  autotuner_->Stop();
  EXPECT_EQ(device_->launches().size(), 1u);
  EXPECT_FALSE(tuned_[0]->Find(Key()).has_value());
}

TEST_F(AutotunerTest, DevicesThatAreAlikeShareTheirChoices) {
  testing::ScriptedDevice a(BackendKind::kCpu, clock_, CrossingAtSix);
  testing::ScriptedDevice b(BackendKind::kCpu, clock_, CrossingAtSix);
  testing::ScriptedDevice c(BackendKind::kCpu, clock_, CrossingAtSix);
  c.Rename("another");
  const auto tuned = MakeTunedChoices({&a, &c, &b});
  EXPECT_EQ(tuned[0], tuned[2]);
  EXPECT_NE(tuned[0], tuned[1]);
}

}  // namespace
}  // namespace nibble::server
