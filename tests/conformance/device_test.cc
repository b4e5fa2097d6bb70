// Devices themselves: memory accounting, streams, refused arguments.
#include <limits>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/runner.h"
#include "tests/conformance/weights.h"

namespace nibble::conformance {
namespace {

using ::testing::HasSubstr;

void ExpectRefused(const Status& status, absl::StatusCode code, std::string_view message_part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(MessageOf(status)), HasSubstr(std::string(message_part)));
}

void ExpectInvalid(const Status& status, std::string_view field) {
  ExpectRefused(status, absl::StatusCode::kInvalidArgument, field);
}

WeightSpec Nf4(int64_t n, int64_t k) {
  WeightSpec spec;
  spec.format = Format::kNF4;
  spec.n = n;
  spec.k = k;
  return spec;
}

class DeviceTest : public ::testing::TestWithParam<Backend> {
 protected:
  uint64_t FreeBytes() const { return device_.memory().total_bytes - device_.memory().used_bytes; }
  uint64_t UsedBytes() const { return device_.memory().used_bytes; }

  Device& device_ = *DevicesOf(GetParam())[0];
};

TEST_P(DeviceTest, TellsWhatItIs) {
  const DeviceInfo& info = device_.info();
  EXPECT_THAT(info.id, ::testing::EndsWith(":0"));
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.cores, 1);
  EXPECT_GT(info.memory_bytes, 0u);
  EXPECT_GE(info.batches_in_flight, 1);
  EXPECT_TRUE(device_.health().ok());
}

TEST_P(DeviceTest, BuffersAreAlignedAndCounted) {
  const uint64_t used = UsedBytes();
  for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kStaging}) {
    for (const uint64_t bytes : {0, 1, 255, 257, 100000}) {
      auto buffer = device_.Allocate(bytes, kind);
      ASSERT_TRUE(buffer.ok()) << buffer.status();
      EXPECT_EQ((*buffer)->size(), bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>((*buffer)->data()) % 256, 0u);
      if (kind == MemoryKind::kDevice) {
        EXPECT_GE(UsedBytes(), used + bytes);
      }
    }
  }
  EXPECT_EQ(UsedBytes(), used);
}

TEST_P(DeviceTest, RefusesMoreThanItsMemory) {
  const uint64_t used = UsedBytes();
  const uint64_t too_much = FreeBytes() + 1;
  for (const uint64_t bytes : {too_much, std::numeric_limits<uint64_t>::max(),
                               std::numeric_limits<uint64_t>::max() / 2 + 1}) {
    const auto buffer = device_.Allocate(bytes, MemoryKind::kDevice);
    ExpectRefused(buffer.status(), absl::StatusCode::kResourceExhausted,
                  std::to_string(FreeBytes()));
    const auto reservation = device_.Reserve(bytes);
    ExpectRefused(reservation.status(), absl::StatusCode::kResourceExhausted,
                  std::to_string(bytes));
  }
  EXPECT_EQ(UsedBytes(), used);
}

TEST_P(DeviceTest, UploadTakesAtMostWeightBytesAndGivesThemBack) {
  const uint64_t used = UsedBytes();
  for (const Variant& variant : AllVariants()) {
    SCOPED_TRACE(variant.name);
    const CanonicalWeight weight = RandomWeight(variant.SpecOf(33, 257), 1);
    auto uploaded = device_.Upload(weight, nullptr);
    ASSERT_TRUE(uploaded.ok()) << uploaded.status();
    EXPECT_EQ((*uploaded)->spec(), weight.spec);
    EXPECT_LE((*uploaded)->bytes(), device_.WeightBytes(weight.spec));
    EXPECT_EQ(UsedBytes(), used + (*uploaded)->bytes());
    uploaded->reset();
    EXPECT_EQ(UsedBytes(), used);
  }
}

TEST_P(DeviceTest, UploadDrawsFromTheReservation) {
  const uint64_t used = UsedBytes();
  const CanonicalWeight weight = RandomWeight(Nf4(64, 512), 2);
  const uint64_t bytes = device_.WeightBytes(weight.spec);
  auto reservation = device_.Reserve(bytes);
  ASSERT_TRUE(reservation.ok()) << reservation.status();
  EXPECT_EQ(UsedBytes(), used + bytes);
  // Nothing else is free: the upload must live on what was reserved.
  auto rest = device_.Reserve(FreeBytes());
  ASSERT_TRUE(rest.ok()) << rest.status();
  ExpectRefused(device_.Upload(weight, nullptr).status(), absl::StatusCode::kResourceExhausted, "");
  auto uploaded = device_.Upload(weight, reservation->get());
  ASSERT_TRUE(uploaded.ok()) << uploaded.status();
  // A reservation is used up once.
  ExpectRefused(device_.Upload(weight, reservation->get()).status(),
                absl::StatusCode::kResourceExhausted, "");
  rest->reset();
  reservation->reset();
  EXPECT_EQ(UsedBytes(), used + (*uploaded)->bytes());
  uploaded->reset();
  EXPECT_EQ(UsedBytes(), used);
}

TEST_P(DeviceTest, AFailedUploadLeavesNothingBehind) {
  const uint64_t used = UsedBytes();
  CanonicalWeight weight = RandomWeight(Nf4(16, 64), 3);
  weight.scales = HostBytes(std::vector<std::byte>(3));
  ExpectInvalid(device_.Upload(weight, nullptr).status(), "scales");
  WeightSpec huge = Nf4(int64_t{1} << 31, int64_t{1} << 31);
  CanonicalWeight empty;
  empty.spec = huge;
  ExpectInvalid(device_.Upload(empty, nullptr).status(), "codes");
  EXPECT_GT(device_.WeightBytes(huge), device_.memory().total_bytes);
  EXPECT_EQ(UsedBytes(), used);
}

TEST_P(DeviceTest, MemoryIsAccountedFromSeveralThreads) {
  const uint64_t used = UsedBytes();
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const auto reservation = device_.Reserve(4096);
        const auto buffer = device_.Allocate(1000, MemoryKind::kDevice);
        EXPECT_TRUE(reservation.ok() && buffer.ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(UsedBytes(), used);
}

TEST_P(DeviceTest, DenseViewShowsTheElements) {
  WeightSpec spec;
  spec.dtype = DType::kBF16;
  spec.n = 1;
  spec.k = 77;
  Runner runner(device_);
  const CanonicalWeight weight = RandomWeight(spec, 4);
  const auto gamma = runner.Upload(weight);
  const auto view = device_.DenseView(*gamma);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->dtype, DType::kBF16);
  EXPECT_EQ(view->rows, 1);
  EXPECT_EQ(view->cols, 77);
  auto staging = device_.Allocate(77 * 2, MemoryKind::kStaging);
  ASSERT_TRUE(staging.ok());
  ASSERT_TRUE(runner.stream().Copy((*staging)->data(), view->data, 77 * 2).ok());
  ASSERT_TRUE(runner.stream().Synchronize().ok());
  EXPECT_EQ(std::memcmp((*staging)->data(), weight.codes.data(), 77 * 2), 0);

  const auto quantized = runner.Upload(RandomWeight(Nf4(1, 77), 5));
  ExpectInvalid(device_.DenseView(*quantized).status(), "dense");
}

TEST_P(DeviceTest, MarksMeasureTime) {
  Runner runner(device_);
  Stream& stream = runner.stream();
  ASSERT_TRUE(stream.Mark(0).ok());
  ASSERT_TRUE(stream.Mark(3).ok());
  ASSERT_TRUE(stream.Synchronize().ok());
  const auto elapsed = stream.MicrosecondsBetween(0, 3);
  ASSERT_TRUE(elapsed.ok()) << elapsed.status();
  EXPECT_GE(*elapsed, 0.0);
  ExpectInvalid(stream.Mark(4), "slot");
  ExpectInvalid(stream.Mark(-1), "slot");
  ExpectInvalid(stream.MicrosecondsBetween(0, 1).status(), "slot");
}

TEST_P(DeviceTest, TwoStreamsAtOnceGiveWhatEachGivesAlone) {
  constexpr int kRounds = 40;
  Runner setup(device_);
  const auto first = setup.Upload(RandomWeight(Nf4(67, 531), 6));
  const auto second = setup.Upload(RandomWeight(Nf4(131, 257), 7));
  const MatmulInput first_input{.x = RandomActivations(DType::kBF16, 9, 531, 8)};
  const MatmulInput second_input{.x = RandomActivations(DType::kBF16, 3, 257, 9)};
  const HostMatrix first_y = setup.Matmul(*first, first_input, DType::kF32);
  const HostMatrix second_y = setup.Matmul(*second, second_input, DType::kF32);
  std::thread other([&] {
    Runner runner(device_);
    for (int i = 0; i < kRounds; ++i) {
      EXPECT_EQ(runner.Matmul(*second, second_input, DType::kF32), second_y);
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    EXPECT_EQ(setup.Matmul(*first, first_input, DType::kF32), first_y);
  }
  other.join();
}

TEST_P(DeviceTest, ASecondDeviceGivesTheSameAndTakesOnlyItsOwn) {
  const auto& devices = DevicesOf(GetParam());
  if (devices.size() < 2) GTEST_SKIP() << "one device only";
  Runner first(*devices[0]);
  Runner second(*devices[1]);
  EXPECT_NE(devices[0]->info().id, devices[1]->info().id);
  const CanonicalWeight weight = RandomWeight(Nf4(37, 531), 10);
  const auto on_first = first.Upload(weight);
  const auto on_second = second.Upload(weight);
  const MatmulInput input{.x = RandomActivations(DType::kF16, 5, 531, 11)};
  EXPECT_EQ(first.Matmul(*on_first, input, DType::kF32),
            second.Matmul(*on_second, input, DType::kF32));

  const Runner::Input x = second.Put(input.x);
  const Runner::Input y = second.Put(HostMatrix(DType::kF32, 5, 37));
  MatmulArgs args;
  args.weight = on_first.get();
  args.x = x.view;
  args.y = MakeView(y.buffer->data(), DType::kF32, 5, 37);
  Problem problem;
  problem.weight = weight.spec;
  problem.m = 5;
  const Choice choice = Select(problem, devices[1]->info());
  ExpectInvalid(devices[1]->Matmul(args, choice, nullptr, second.stream()), "weight");
  ExpectInvalid(devices[1]->DenseView(*on_first).status(), "weight");

  const auto foreign = devices[0]->Reserve(1 << 20);
  ASSERT_TRUE(foreign.ok());
  ExpectInvalid(devices[1]->Upload(weight, foreign->get()).status(), "reservation");
}

TEST_P(DeviceTest, OpsCheckTheirArguments) {
  Runner runner(device_);
  const auto weight = runner.Upload(RandomWeight(Nf4(8, 64), 12));
  const Runner::Input x = runner.Put(RandomActivations(DType::kBF16, 2, 64, 13));
  const Runner::Input out = runner.Put(HostMatrix(DType::kF32, 8, 64));
  Problem problem;
  problem.weight = weight->spec();
  problem.m = 2;
  const Choice matmul = Select(problem, device_.info());
  MatmulArgs good;
  good.weight = weight.get();
  good.x = x.view;
  good.y = MakeView(out.buffer->data(), DType::kF32, 2, 8);
  const auto refuse = [&](std::string_view field, auto change) {
    MatmulArgs args = good;
    change(args);
    ExpectInvalid(device_.Matmul(args, matmul, nullptr, runner.stream()), field);
  };
  refuse("weight", [](MatmulArgs& args) { args.weight = nullptr; });
  refuse("x", [](MatmulArgs& args) { args.x.cols = 63; });
  refuse("x", [](MatmulArgs& args) { args.x.dtype = DType::kI8; });
  refuse("y", [](MatmulArgs& args) { args.y.cols = 9; });
  refuse("y", [](MatmulArgs& args) { args.y.data = nullptr; });
  refuse("activation", [](MatmulArgs& args) { args.activation = QuantMode::kPerToken; });

  problem.op = Op::kDequantize;
  const Choice dequantize = Select(problem, device_.info());
  const MatrixView rows = MakeView(out.buffer->data(), DType::kF32, 8, 64);
  ExpectInvalid(device_.Dequantize({weight.get(), 1, rows}, dequantize, nullptr, runner.stream()),
                "rows");
  ExpectInvalid(device_.Dequantize({weight.get(), -1, rows}, dequantize, nullptr, runner.stream()),
                "row_begin");

  problem.op = Op::kNormQuant;
  problem.d = 64;
  NormQuantArgs norm;
  norm.x = x.view;
  norm.gamma = MakeConstView(x.view.data, DType::kBF16, 1, 63);
  norm.y = MakeView(out.buffer->data(), DType::kBF16, 2, 64);
  ExpectInvalid(device_.NormQuant(norm, Select(problem, device_.info()), nullptr, runner.stream()),
                "gamma");

  problem.op = Op::kSiluMulQuant;
  SiluMulQuantArgs silu;
  silu.x = x.view;
  silu.y = MakeView(out.buffer->data(), DType::kF32, 2, 32);
  ExpectInvalid(
      device_.SiluMulQuant(silu, Select(problem, device_.info()), nullptr, runner.stream()), "y");
}

INSTANTIATE_TEST_SUITE_P(Backends, DeviceTest, ::testing::ValuesIn(AllBackends()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace nibble::conformance
