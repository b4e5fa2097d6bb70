// CreateCpuDevices: its options and what the devices say of themselves.
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nibble/backend.h"
#include "tests/conformance/weights.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

CpuOptions Small() {
  CpuOptions options;
  options.threads = 1;
  options.memory_bytes = uint64_t{16} << 20;
  options.measure_bandwidth = false;
  return options;
}

TEST(CreateCpuDevicesTest, NumbersItsDevicesAndGivesEachItsBudget) {
  CpuOptions options = Small();
  options.devices = 3;
  options.threads = 2;
  const auto devices = CreateCpuDevices(options);
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const DeviceInfo& info = (*devices)[i]->info();
    EXPECT_EQ(info.id, "cpu:" + std::to_string(i));
    EXPECT_EQ(info.kind, BackendKind::kCpu);
    EXPECT_EQ(info.cores, 2);
    EXPECT_EQ(info.compute_capability, 0);
    EXPECT_EQ(info.memory_bytes, options.memory_bytes);
    EXPECT_EQ(info.peak_bandwidth_bytes_per_second, 0.0);
    EXPECT_EQ(info.zero_copy_input_bytes, std::numeric_limits<uint64_t>::max());
    EXPECT_EQ(info.zero_copy_output_bytes, std::numeric_limits<uint64_t>::max());
    EXPECT_EQ(info.batches_in_flight, 1);
    EXPECT_EQ((*devices)[i]->memory().total_bytes, options.memory_bytes);
    EXPECT_EQ((*devices)[i]->memory().used_bytes, 0u);
  }
  const auto held = (*devices)[0]->Reserve(1000);
  ASSERT_TRUE(held.ok());
  EXPECT_EQ((*devices)[1]->memory().used_bytes, 0u);
}

TEST(CreateCpuDevicesTest, DefaultsToAShareOfTheMachine) {
  CpuOptions options;
  const auto one = CreateCpuDevices(options);
  options.devices = 2;
  options.measure_bandwidth = false;
  const auto two = CreateCpuDevices(options);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_GT((*one)[0]->info().peak_bandwidth_bytes_per_second, 0.0);
  EXPECT_GE((*one)[0]->info().cores, (*two)[0]->info().cores);
  EXPECT_GE((*two)[0]->info().cores, 1);
  EXPECT_EQ((*one)[0]->info().memory_bytes / 2, (*two)[0]->info().memory_bytes);
  EXPECT_GT((*two)[0]->info().memory_bytes, 0u);
}

TEST(CreateCpuDevicesTest, RefusesOptionsOutOfRange) {
  for (const int devices : {0, -1, 65}) {
    CpuOptions options = Small();
    options.devices = devices;
    const auto created = CreateCpuDevices(options);
    EXPECT_EQ(created.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(MessageOf(created.status())), HasSubstr("devices"));
  }
  for (const int threads : {-1, 1025}) {
    CpuOptions options = Small();
    options.threads = threads;
    const auto created = CreateCpuDevices(options);
    EXPECT_EQ(created.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(MessageOf(created.status())), HasSubstr("threads"));
  }
}

TEST(CpuDeviceTest, RefusesAnUnknownKernelAndAMissingWorkspace) {
  const auto devices = CreateCpuDevices(Small());
  ASSERT_TRUE(devices.ok());
  Device& device = *(*devices)[0];
  const auto stream = device.CreateStream();
  WeightSpec spec;
  spec.n = 4;
  spec.k = 8;
  const auto weight = device.Upload(conformance::RandomWeight(spec, 1), nullptr);
  ASSERT_TRUE(weight.ok()) << weight.status();
  const std::vector<float> x(8, 1.0f);
  std::vector<float> y(4);
  MatmulArgs args;
  args.weight = weight->get();
  args.x = MakeConstView(x.data(), DType::kF32, 1, 8);
  args.y = MakeView(y.data(), DType::kF32, 1, 4);
  Choice choice;
  choice.kernel = "cuda_gemv";
  Status status = device.Matmul(args, choice, y.data(), **stream);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(MessageOf(status)), HasSubstr("cuda_gemv"));
  choice.kernel = "cpu_gemv";
  status = device.Matmul(args, choice, nullptr, **stream);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(MessageOf(status)), HasSubstr("workspace"));
}

TEST(CpuDeviceTest, WeightBytesOfTheLargestSpecsExceedEveryMemory) {
  const auto devices = CreateCpuDevices(Small());
  ASSERT_TRUE(devices.ok());
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  WeightSpec spec;
  for (const Format format : {Format::kDense, Format::kNF4, Format::kInt4, Format::kFP8}) {
    spec.format = format;
    spec.group_size = 1;
    spec.has_zero_points = true;
    spec.has_bias = true;
    for (const auto& [n, k] : {std::pair{int64_t{1}, kMax / 4}, std::pair{kMax / 8, int64_t{1}},
                               std::pair{int64_t{1} << 30, int64_t{1} << 29}}) {
      spec.n = n;
      spec.k = k;
      EXPECT_GT((*devices)[0]->WeightBytes(spec), uint64_t{1} << 57);
      EXPECT_EQ((*devices)[0]->WeightBytes(spec) >> 63, 0u);
      Problem problem;
      problem.weight = spec;
      problem.m = kMax;
      EXPECT_GT((*devices)[0]->WorkspaceBytes(problem, {}), 0u);
    }
  }
}

TEST(CpuDeviceTest, BuffersAndWeightsMayOutliveTheDevice) {
  auto devices = CreateCpuDevices(Small());
  ASSERT_TRUE(devices.ok());
  auto buffer = (*devices)[0]->Allocate(100, MemoryKind::kDevice);
  auto reservation = (*devices)[0]->Reserve(100);
  WeightSpec spec;
  spec.n = 4;
  spec.k = 8;
  auto weight = (*devices)[0]->Upload(conformance::RandomWeight(spec, 1), nullptr);
  ASSERT_TRUE(buffer.ok() && reservation.ok() && weight.ok());
  devices->clear();
  std::memset((*buffer)->data(), 1, 100);
}

}  // namespace
}  // namespace nibble
