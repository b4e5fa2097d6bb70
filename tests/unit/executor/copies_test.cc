// Rows on their way through a lane whose stream runs behind it, as a GPU's does: whatever the lane
// overwrites too early is seen in the answers, and by ThreadSanitizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "server/executor/executor.h"
#include "tests/unit/executor/fixture.h"

namespace nibble::server {
namespace {

using ::nibble::testing::TestDevice;

// Runs what is enqueued on a thread of its own.
class LateStream : public Stream {
 public:
  explicit LateStream(std::atomic<int>& copies_until_failure)
      : copies_until_failure_(copies_until_failure), thread_([this] { Loop(); }) {}
  ~LateStream() override {
    Push(nullptr);
    thread_.join();
  }

  void Push(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }
  absl::Status Copy(void* to, const void* from, uint64_t bytes) override {
    if (copies_until_failure_-- == 0) return absl::InternalError("no copy");
    Push([=] { std::memcpy(to, from, bytes); });
    return absl::OkStatus();
  }
  absl::Status Synchronize() override {
    std::promise<void> done;
    Push([&done] { done.set_value(); });
    done.get_future().wait();
    return absl::OkStatus();
  }
  absl::Status Mark(int /*slot*/) override { return absl::OkStatus(); }
  absl::StatusOr<double> MicrosecondsBetween(int, int) override { return 1.0; }
  absl::Status BeginCapture() override { return absl::UnimplementedError("no graphs"); }
  absl::StatusOr<std::unique_ptr<Graph>> EndCapture() override {
    return absl::UnimplementedError("no graphs");
  }
  absl::Status Launch(Graph&) override { return absl::UnimplementedError("no graphs"); }

 private:
  void Loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !work_.empty(); });
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      if (!work) return;
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::atomic<int>& copies_until_failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::thread thread_;
};

class LateDevice : public TestDevice {
 public:
  explicit LateDevice(bool copies) : TestDevice(copies) {}
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    return std::make_unique<LateStream>(copies_until_failure);
  }
  std::atomic<int> copies_until_failure{-1};
};

// Every output is an input; nothing is written where the constant has not come along.
class Pass : public Operation {
 public:
  Pass(const std::vector<int64_t>& row_bytes, std::byte constant) : constant_(constant) {
    input_row_bytes_ = output_row_bytes_ = row_bytes;
  }
  std::span<const std::byte> constant() const override { return {&constant_, 1}; }
  Problem ProblemFor(int64_t rows) const override {
    Problem problem;
    problem.op = Op::kSiluMulQuant;
    problem.m = rows;
    problem.d = 1;
    return problem;
  }
  absl::Status Launch(Device&, const Choice&, const LaunchArgs& args,
                      Stream& stream) const override {
    static_cast<LateStream&>(stream).Push([this, args] {
      if (*static_cast<const std::byte*>(args.constant) != constant_) return;
      for (size_t i = 0; i < input_row_bytes_.size(); ++i) {
        std::memcpy(args.outputs[i], args.inputs[i],
                    static_cast<size_t>(args.rows * input_row_bytes_[i]));
      }
    });
    return absl::OkStatus();
  }

 private:
  const std::byte constant_;
};

// A request with memory of its own: arrays in several places, their rows apart, or one row for all.
struct PassRequest {
  PassRequest(const std::shared_ptr<const Pass>& pass, int64_t row_count, std::mt19937& random)
      : rows(row_count), job(std::make_shared<Job>()) {
    job->operation = pass;
    for (const int64_t row_bytes : pass->input_row_bytes()) {
      const int64_t stride = random() % 3 == 0 ? 0 : row_bytes + (random() % 2 == 0 ? 0 : 16);
      std::vector<std::byte>& data =
          in.emplace_back(static_cast<size_t>(std::max<int64_t>(rows - 1, 0) * stride + row_bytes));
      for (size_t at = 0; at < data.size(); at += 61) data[at] = static_cast<std::byte>(random());
      RowInput input{.row_stride_bytes = stride};
      for (size_t at = 0; at < data.size();) {
        const size_t bytes = std::min<size_t>(data.size() - at, 1 + random() % 100'000);
        input.data.Append(std::span(data).subspan(at, bytes));
        at += bytes;
      }
      strides.push_back(stride);
      job->inputs.push_back(std::move(input));
      job->outputs.push_back(
          out.emplace_back(static_cast<size_t>(rows * row_bytes), kUntouched).data());
    }
  }

  // Rows [begin, end) of every output are those of its input, others untouched.
  bool IsRight(int64_t begin, int64_t end) const {
    for (size_t i = 0; i < in.size(); ++i) {
      const auto bytes = static_cast<size_t>(job->operation->input_row_bytes()[i]);
      const std::vector<std::byte> untouched(bytes, kUntouched);
      for (int64_t row = 0; row < rows; ++row) {
        const bool inside = row >= begin && row < end;
        const std::byte* expected = inside ? in[i].data() + row * strides[i] : untouched.data();
        if (std::memcmp(out[i].data() + static_cast<size_t>(row) * bytes, expected, bytes) != 0) {
          return false;
        }
      }
    }
    return true;
  }

  static constexpr std::byte kUntouched{0xEE};
  int64_t rows;
  std::shared_ptr<Job> job;
  std::vector<std::vector<std::byte>> in, out;
  std::vector<int64_t> strides;
};

class CopiesTest : public ::testing::TestWithParam<std::tuple<bool, int>> {
 protected:
  CopiesTest() : device_(std::get<0>(GetParam())) {
    executor_ = Executor::Create(device_, {.lanes = 2, .copy_helpers = std::get<1>(GetParam())},
                                 nullptr, {})
                    .value();
  }
  LateDevice device_;
  std::unique_ptr<Executor> executor_;
};

// Pieces of requests, some of no rows, of one to three arrays of rows of a byte to 700 KB.
TEST_P(CopiesTest, BatchesOfAllShapesFromSeveralCallers) {
  constexpr uint32_t kCallers = 2;
  constexpr int kCalls = 8;
  constexpr int64_t kMostBytes = 12'000'000;
  const std::vector<std::vector<int64_t>> shapes = {
      {8192}, {8192, 4, 60'001}, {3, 2048, 2048}, {700'001}, {524'288}, {1}, {4, 1024}};
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (uint32_t caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      std::mt19937 random(caller);
      for (size_t call = 0; call < kCalls; ++call) {
        const std::vector<int64_t>& shape = shapes[(call + caller) % shapes.size()];
        const auto pass = std::make_shared<const Pass>(shape, static_cast<std::byte>(random()));
        const auto pieces = static_cast<int64_t>(1 + random() % (call % 4 == 0 ? 200 : 5));
        const int64_t most = kMostBytes / *std::ranges::max_element(shape) / pieces;
        std::vector<std::unique_ptr<PassRequest>> requests;
        Batch batch;
        for (int64_t i = 0; i < pieces; ++i) {
          const auto rows = static_cast<int64_t>(random() % std::clamp<uint64_t>(most, 2, 3000));
          requests.push_back(std::make_unique<PassRequest>(pass, rows, random));
          const int64_t begin = rows / 7;
          batch.pieces.push_back({requests.back()->job, begin, rows - begin});
          batch.rows += rows - begin;
        }
        std::promise<absl::Status> done;
        executor_->Run(std::move(batch),
                       [&](const BatchResult& result) { done.set_value(result.status); });
        if (!done.get_future().get().ok()) ++wrong;
        for (const auto& request : requests) {
          if (!request->IsRight(request->rows / 7, request->rows)) ++wrong;
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(CopiesTest, ACopyThatFailsOnTheWayFailsItsBatchAlone) {
  constexpr int64_t kRows = 1500;  // 23.4 MiB: twelve parts on the way in, one copy out
  std::mt19937 random(7);
  const auto pass = std::make_shared<const Pass>(std::vector<int64_t>{8192, 8192}, std::byte{3});
  for (int failing = 0; failing < 14; ++failing) {
    device_.copies_until_failure = failing;
    PassRequest request(pass, kRows, random);
    std::promise<absl::Status> done;
    executor_->Run({.pieces = {{request.job, 0, kRows}}, .rows = kRows},
                   [&](const BatchResult& result) { done.set_value(result.status); });
    const bool failed = !done.get_future().get().ok();
    EXPECT_EQ(failed, std::get<0>(GetParam()) && failing < 13) << failing;
    EXPECT_TRUE(request.IsRight(0, failed ? 0 : kRows));
  }
}

TEST_P(CopiesTest, DestructionFinishesLargeBatches) {
  constexpr int64_t kRows = 1000;
  std::mt19937 random(9);
  const auto pass = std::make_shared<const Pass>(std::vector<int64_t>{8192}, std::byte{3});
  std::vector<std::unique_ptr<PassRequest>> requests;
  std::atomic<size_t> done{0};
  for (int i = 0; i < 6; ++i) {
    requests.push_back(std::make_unique<PassRequest>(pass, kRows, random));
    executor_->Run({.pieces = {{requests.back()->job, 0, kRows}}, .rows = kRows},
                   [&](const BatchResult&) { ++done; });
  }
  executor_.reset();
  EXPECT_EQ(done, requests.size());
  for (const auto& request : requests) EXPECT_TRUE(request->IsRight(0, kRows));
}

INSTANTIATE_TEST_SUITE_P(Crews, CopiesTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(0, 3)));

}  // namespace
}  // namespace nibble::server
