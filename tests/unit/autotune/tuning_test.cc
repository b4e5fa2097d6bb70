#include "server/autotune/tuning.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "tests/unit/autotune/fixture.h"

namespace nibble::server {
namespace {

using ::testing::ElementsAre;

class FakeGate final : public QuietGate {
 public:
  bool Await() override { return waits_before_stop < 0 || waits_before_stop-- > 0; }
  bool Disturbed() override { return disturbances > 0 && disturbances-- > 0; }

  int waits_before_stop = -1;  // never
  int disturbances = 0;        // of the next measurements
};

class TuningTest : public TuningFixture {
 protected:
  Tuning Run(const MatmulKey& key = Key()) {
    ServedWeights weights(*store_, 0, key.weight);
    return Tune(*device_, key, weights, gate_, clock_, limits_);
  }
  std::string_view KernelAt(const Tuning& tuning, int64_t m) const {
    MeasuredTable table;
    table.Set(Key(), MakeMeasured(Key(), device_->info(), tuning.rows));
    return Select(ProblemOf(Key(), m), device_->info(), &table).kernel;
  }
  std::vector<std::string_view> KernelsLaunched() const {
    std::vector<std::string_view> kernels;
    for (const Launch& launch : device_->launches()) kernels.push_back(launch.kernel);
    return kernels;
  }
  static std::vector<int64_t> RowsOf(const Tuning& tuning) {
    std::vector<int64_t> ms;
    for (const MeasuredRows& rows : tuning.rows) ms.push_back(rows.m);
    return ms;
  }

  FakeGate gate_;
  TuningLimits limits_{.max_rows = 64};
};

TEST_F(TuningTest, FindsTheCrossoverToTheRow) {
  Start(CrossingAtSix);
  Load("w");
  const Tuning tuning = Run();
  EXPECT_EQ(tuning.end, TuningEnd::kComplete);
  EXPECT_THAT(RowsOf(tuning), ElementsAre(1, 2, 4, 5, 6, 8, 16, 32, 64));
  for (int64_t m = 1; m <= 64; ++m) {
    EXPECT_EQ(KernelAt(tuning, m), m <= 5 ? "cpu_gemv" : "cpu_gemm") << m;
  }
  EXPECT_DOUBLE_EQ(TimeOf(tuning.rows[2], "cpu_gemv"), 40.0);
  EXPECT_DOUBLE_EQ(TimeOf(tuning.rows[2], "cpu_gemm"), 55.0);
  EXPECT_EQ(device_->used_bytes(), 0u);
}

TEST_F(TuningTest, NoChoiceIsMoreThanFivePercentSlowerThanTheBest) {
  // Steps of a tile of four rows against a slope; the crossovers are many.
  const auto time_us = [](std::string_view kernel, int64_t m) {
    return kernel == "cpu_gemv" ? 20.0 * static_cast<double>(CeilDiv(m, 4))
                                : 30.0 + 4.0 * static_cast<double>(m);
  };
  Start([&](const Launch& launch) -> StatusOr<double> { return time_us(launch.kernel, launch.m); });
  Load("w");
  const Tuning tuning = Run();
  ASSERT_EQ(tuning.end, TuningEnd::kComplete);
  for (const MeasuredRows& rows : tuning.rows) {
    const double best = std::min(time_us("cpu_gemv", rows.m), time_us("cpu_gemm", rows.m));
    EXPECT_LE(time_us(KernelAt(tuning, rows.m), rows.m), 1.05 * best) << rows.m;
  }
}

TEST_F(TuningTest, ASmallGainChangesNothing) {
  Start([](const Launch& launch) -> StatusOr<double> {
    return launch.kernel == "cpu_gemv" ? 98.0 : 100.0;
  });
  Load("w");
  const Tuning tuning = Run();
  for (const int64_t m : {1, 7, 8, 64}) {
    EXPECT_EQ(KernelAt(tuning, m), Select(ProblemOf(Key(), m), device_->info()).kernel) << m;
  }
}

TEST_F(TuningTest, CandidatesTakeTurns) {
  Start([](const Launch& launch) -> StatusOr<double> {
    return launch.kernel == "cpu_gemv" ? 2000.0 : 3000.0;
  });
  Load("w");
  limits_.max_rows = 1;
  Run();
  // Two launches of each, then seven rounds.
  std::vector<std::string_view> expected = {"cpu_gemv", "cpu_gemv", "cpu_gemm", "cpu_gemm"};
  for (int round = 0; round < 7; ++round) expected.insert(expected.end(), {"cpu_gemv", "cpu_gemm"});
  EXPECT_EQ(KernelsLaunched(), expected);
}

TEST_F(TuningTest, LaunchesThatWereInterruptedDoNotCount) {
  Start([&](const Launch& launch) -> StatusOr<double> {
    const double us = launch.kernel == "cpu_gemv" ? 2000.0 : 3000.0;
    return device_->launches().size() % 3 == 0 ? us : 1.9 * us;
  });
  Load("w");
  limits_.max_rows = 1;
  const Tuning tuning = Run();
  EXPECT_DOUBLE_EQ(TimeOf(tuning.rows[0], "cpu_gemv"), 2000.0);
  EXPECT_DOUBLE_EQ(TimeOf(tuning.rows[0], "cpu_gemm"), 3000.0);
}

TEST_F(TuningTest, AHopelessKernelIsTimedOnce) {
  Start([](const Launch& launch) -> StatusOr<double> {
    return launch.kernel == "cpu_gemv" ? 2000.0 : 9000.0;
  });
  Load("w");
  limits_.max_rows = 1;
  const Tuning tuning = Run();
  std::vector<std::string_view> expected = {"cpu_gemv", "cpu_gemv", "cpu_gemm", "cpu_gemm"};
  expected.insert(expected.end(), 7, "cpu_gemv");
  EXPECT_EQ(KernelsLaunched(), expected);
  EXPECT_DOUBLE_EQ(TimeOf(tuning.rows[0], "cpu_gemm"), 9000.0);
}

TEST_F(TuningTest, TheBuiltInKernelIsTimedWellHoweverSlow) {
  Start(
      [](const Launch& launch) -> StatusOr<double> {
        return launch.kernel == "cuda_gemm" ? 9000.0 : 2000.0;
      },
      BackendKind::kCuda);
  Load("w");
  limits_.max_rows = 1;
  Run();
  const std::vector<std::string_view> kernels = KernelsLaunched();
  EXPECT_EQ(std::ranges::count(kernels, "cuda_gemm"), 9);
  EXPECT_EQ(std::ranges::count(kernels, "cuda_gemm_f32"), 9);
}

TEST_F(TuningTest, TheBudgetEndsItAndWhatIsKnownStays) {
  Start([](const Launch&) -> StatusOr<double> { return 1000.0; });
  Load("w");
  limits_.budget = std::chrono::milliseconds(60);  // 18 launches a number of rows
  const Tuning tuning = Run();
  EXPECT_EQ(tuning.end, TuningEnd::kBudget);
  EXPECT_THAT(RowsOf(tuning), ElementsAre(1, 2, 4));
  EXPECT_EQ(device_->launches().size(), 60u);
}

TEST_F(TuningTest, LaunchesThatARequestWouldWaitForTooLongAreNotMade) {
  Start([](const Launch& launch) -> StatusOr<double> {
    return 4000.0 * static_cast<double>(launch.m);
  });
  Load("w");
  limits_.budget = std::chrono::hours(1);
  const Tuning tuning = Run();
  EXPECT_EQ(tuning.end, TuningEnd::kTooLong);
  EXPECT_THAT(RowsOf(tuning), ElementsAre(1, 2, 4, 6, 7, 8));  // 16 rows: 64 ms
}

TEST_F(TuningTest, RowsThatTakeTooMuchMemoryAreNotMeasured) {
  Start(CrossingAtSix);
  Load("w");
  limits_.memory_bytes = 8 * 32 * 2 + 8 * 16 * 2 + 256;  // x, y and workspace of 8 rows
  const Tuning tuning = Run();
  EXPECT_EQ(tuning.end, TuningEnd::kTooLong);
  EXPECT_THAT(RowsOf(tuning), ElementsAre(1, 2, 4, 5, 6, 8));
}

TEST_F(TuningTest, AMeasurementThatWasDisturbedIsMadeAgain) {
  Start(CrossingAtSix);
  Load("w");
  Run();
  const size_t undisturbed = device_->launches().size();
  gate_.disturbances = 1;
  const Tuning tuning = Run();
  EXPECT_EQ(tuning.end, TuningEnd::kComplete);
  EXPECT_EQ(device_->launches().size(), 2 * undisturbed + 1);
}

TEST_F(TuningTest, TheGateEndsItWithoutAnotherLaunch) {
  Start(CrossingAtSix);
  Load("w");
  gate_.waits_before_stop = 3;
  const Tuning tuning = Run();
  EXPECT_EQ(tuning.end, TuningEnd::kStopped);
  EXPECT_EQ(device_->launches().size(), 3u);
  EXPECT_EQ(device_->used_bytes(), 0u);
}

TEST_F(TuningTest, AWeightIsUnloadedBetweenTwoLaunches) {
  bool freed = false;
  size_t launches_when_freed = 0;
  Start([&](const Launch& launch) {
    if (device_->launches().size() == 20) {
      EXPECT_TRUE(store_
                      ->Unload("w",
                               [&](const WeightStore::Unloaded&) {
                                 freed = true;
                                 launches_when_freed = device_->launches().size();
                               })
                      .ok());
    }
    return CrossingAtSix(launch);
  });
  Load("w");
  const Tuning tuning = Run();
  EXPECT_EQ(tuning.end, TuningEnd::kWeightGone);
  EXPECT_TRUE(freed);
  EXPECT_EQ(device_->launches().size(), launches_when_freed);
}

TEST_F(TuningTest, TakesTurnsOverTheWeightsOfTheShape) {
  Start(CrossingAtSix);
  Load("a");
  Load("b");
  Run();
  std::set<const DeviceWeight*> used;
  for (const Launch& launch : device_->launches()) used.insert(launch.weight);
  EXPECT_EQ(used.size(), 2u);
}

TEST_F(TuningTest, ALostDeviceEndsIt) {
  Start([&](const Launch& launch) -> StatusOr<double> {
    if (device_->launches().size() < 10) return CrossingAtSix(launch);
    device_->Lose(absl::UnavailableError("lost"));
    return absl::UnavailableError("lost");
  });
  Load("w");
  const Tuning tuning = Run();
  EXPECT_EQ(tuning.end, TuningEnd::kFault);
  EXPECT_EQ(tuning.fault.message(), "lost");
  EXPECT_EQ(device_->launches().size(), 10u);
}

TEST_F(TuningTest, AKernelThatFailsIsLeftOut) {
  Start([&](const Launch& launch) -> StatusOr<double> {
    if (launch.kernel == "cpu_gemm" && launch.m < 8) return absl::InternalError("not this");
    return CrossingAtSix(launch);
  });
  Load("w");
  const Tuning tuning = Run();
  EXPECT_EQ(tuning.end, TuningEnd::kComplete);
  EXPECT_EQ(TimeOf(tuning.rows[0], "cpu_gemm"), 0.0);
  EXPECT_EQ(KernelAt(tuning, 4), "cpu_gemv");
  EXPECT_EQ(KernelAt(tuning, 64), "cpu_gemm");
}

}  // namespace
}  // namespace nibble::server
