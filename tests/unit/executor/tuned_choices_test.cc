#include "server/executor/tuned_choices.h"

#include <gmock/gmock.h>

#include <future>

#include "nibble/quantize.h"
#include "server/executor/engine.h"
#include "server/executor/operations.h"
#include "tests/unit/executor/fixture.h"

namespace nibble::server {
namespace {

using ::nibble::testing::TestDevice;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

MatmulKey Key(int64_t n = 4) {
  MatmulKey key;
  key.weight.format = Format::kNF4;
  key.weight.n = n;
  key.weight.k = 8;
  return key;
}

// cpu_gemm is faster for 1 to 16 rows.
MeasuredMatmul GemmIsFaster(const MatmulKey& key, const DeviceInfo& device) {
  return MakeMeasured(key, device, {{16, {{"cpu_gemm", 1.0}, {"cpu_gemv", 2.0}}}});
}

TEST(TunedChoicesTest, AsksOnceForWhatIsNotKnown) {
  TunedChoices tuned;
  int asked = 0;
  tuned.OnWanted([&] { ++asked; });
  const DeviceInfo device;
  EXPECT_EQ(tuned.SelectFor(ProblemOf(Key(), 2), device).kernel, "cpu_gemv");
  EXPECT_EQ(tuned.SelectFor(ProblemOf(Key(), 3), device).kernel, "cpu_gemv");
  EXPECT_EQ(asked, 1);
  EXPECT_THAT(tuned.Wanted(), ElementsAre(Key()));
  EXPECT_FALSE(tuned.Settled(Key()));
  tuned.Put(Key(), GemmIsFaster(Key(), device));
  EXPECT_TRUE(tuned.Settled(Key()));
  EXPECT_EQ(tuned.SelectFor(ProblemOf(Key(), 2), device).kernel, "cpu_gemm");
  EXPECT_THAT(tuned.Wanted(), IsEmpty());
  EXPECT_EQ(asked, 1);
}

TEST(TunedChoicesTest, WhatIsGivenUpIsNotAskedForAgain) {
  TunedChoices tuned;
  tuned.GiveUp(Key());
  EXPECT_TRUE(tuned.Settled(Key()));
  EXPECT_EQ(tuned.SelectFor(ProblemOf(Key(), 2), {}).kernel, "cpu_gemv");
  EXPECT_THAT(tuned.Wanted(), IsEmpty());
  EXPECT_FALSE(tuned.Find(Key()).has_value());
}

TEST(TunedChoicesTest, OtherOpsAreNotAskedFor) {
  TunedChoices tuned;
  Problem norm;
  norm.op = Op::kNormQuant;
  EXPECT_EQ(tuned.SelectFor(norm, {}), Select(norm, {}));
  EXPECT_THAT(tuned.Wanted(), IsEmpty());
}

TEST(TunedChoicesTest, KeepsSoManyKeysAndNoMore) {
  TunedChoices tuned;
  for (int64_t n = 1; n <= 10 + static_cast<int64_t>(TunedChoices::kMaxKeys); ++n) {
    tuned.SelectFor(ProblemOf(Key(n), 1), {});
  }
  EXPECT_EQ(tuned.Wanted().size(), TunedChoices::kMaxKeys);
  EXPECT_TRUE(tuned.Settled(Key(5 + static_cast<int64_t>(TunedChoices::kMaxKeys))));
}

TEST(TunedChoicesTest, ABatchRunsOnTheMeasuredKernel) {
  const std::unique_ptr<Clock> clock = CreateRealClock();
  const std::unique_ptr<Metrics> metrics = Metrics::Create("test", "cpu");
  TestDevice device(false);
  WeightStore store({&device}, nullptr);
  const std::vector<float> values(4 * 8, 0.5f);
  const CanonicalWeight weight =
      Quantize(MakeConstView(values.data(), DType::kF32, 4, 8), Key().weight).value();
  {
    auto load = store.Begin("w", {{"w", weight.spec}}, "").value();
    ASSERT_TRUE(load->Add("w", weight).ok());
    ASSERT_TRUE(load->Commit().ok());
  }
  TunedChoices tuned;
  EngineOptions options;
  options.tuned = {&tuned};
  const auto engine = Engine::Create(options, {&device}, *clock, *metrics).value();
  EXPECT_EQ(engine->tuned(0), &tuned);
  EXPECT_EQ(engine->activity(0).batches, 0u);
  const std::vector<std::byte> x(2 * 8 * 2);
  std::vector<std::byte> y(2 * 4 * 2);
  const auto kernel = [&] {
    const KeyedOperation matmul = MakeMatmul(store.Acquire("w").value(), {});
    auto job = std::make_shared<Job>();
    job->operation = matmul.operation;
    job->inputs = {{ByteSpans(std::span(x)), 16}};
    job->outputs = {y.data()};
    std::promise<Outcome> ended;
    Work work;
    work.key = matmul.key;
    work.rows = 2;
    work.payload = job;
    work.done = [&](const Outcome& outcome) { ended.set_value(outcome); };
    EXPECT_TRUE(engine->batcher(0).Submit(std::move(work)).ok());
    const Outcome outcome = ended.get_future().get();
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    return outcome.kernel;
  };
  EXPECT_EQ(kernel(), "cpu_gemv");
  ASSERT_EQ(tuned.Wanted().size(), 1u);
  const MatmulKey key = tuned.Wanted().front();
  EXPECT_EQ(key.weight, weight.spec);
  tuned.Put(key, GemmIsFaster(key, device.info()));
  EXPECT_EQ(kernel(), "cpu_gemm");
  EXPECT_EQ(engine->activity(0).batches, 2u);
}

}  // namespace
}  // namespace nibble::server
