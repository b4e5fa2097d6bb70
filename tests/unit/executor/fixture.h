// A device whose behaviour the tests choose, over the CPU backend, and an operation that is easy to
// check.
#ifndef NIBBLE_TESTS_UNIT_EXECUTOR_FIXTURE_H_
#define NIBBLE_TESTS_UNIT_EXECUTOR_FIXTURE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "nibble/backend.h"
#include "server/executor/operation.h"

namespace nibble::testing {

inline std::unique_ptr<Device> MakeCpuDevice() {
  CpuOptions options;
  options.threads = 1;
  options.memory_bytes = uint64_t{1} << 30;
  options.measure_bandwidth = false;
  return std::move(CreateCpuDevices(options).value().front());
}

// What a RecordingStream was asked to do. Atomic: lanes have threads of their own.
struct RecordingCounts {
  std::atomic<int> recorded{0};  // graphs made
  std::atomic<int> replayed{0};
  std::atomic<int> alive{0};  // graphs
  std::atomic<bool> fail_recording{false};
};

// A CPU stream with graphs: what is enqueued while it records runs when the graph is launched.
class RecordingStream : public Stream {
 public:
  RecordingStream(std::unique_ptr<Stream> cpu, RecordingCounts& counts)
      : cpu_(std::move(cpu)), counts_(counts) {}

  // Runs `work`, or records it.
  absl::Status Enqueue(std::function<absl::Status()> work) {
    if (!recording_) return work();
    work_.push_back(std::move(work));
    return absl::OkStatus();
  }
  absl::Status Copy(void* to, const void* from, uint64_t bytes) override {
    return Enqueue([=, this] { return cpu_->Copy(to, from, bytes); });
  }
  absl::Status Mark(int slot) override {
    return Enqueue([=, this] { return cpu_->Mark(slot); });
  }
  absl::Status Synchronize() override { return cpu_->Synchronize(); }
  absl::StatusOr<double> MicrosecondsBetween(int begin, int end) override {
    return cpu_->MicrosecondsBetween(begin, end);
  }
  absl::Status BeginCapture() override {
    recording_ = true;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Graph>> EndCapture() override {
    recording_ = false;
    auto graph = std::make_unique<Recorded>(counts_, std::exchange(work_, {}));
    if (counts_.fail_recording) return absl::InternalError("not this");
    ++counts_.recorded;
    return graph;
  }
  absl::Status Launch(Graph& graph) override {
    ++counts_.replayed;
    for (const auto& work : static_cast<Recorded&>(graph).work) {
      if (absl::Status status = work(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  struct Recorded : Graph {
    Recorded(RecordingCounts& of, std::vector<std::function<absl::Status()>> recorded)
        : counts(of), work(std::move(recorded)) {
      ++counts.alive;
    }
    ~Recorded() override { --counts.alive; }
    RecordingCounts& counts;
    const std::vector<std::function<absl::Status()>> work;
  };

  const std::unique_ptr<Stream> cpu_;
  RecordingCounts& counts_;
  bool recording_ = false;
  std::vector<std::function<absl::Status()>> work_;
};

// Forwards to a CPU device. With `copies` it claims memory of its own, so that rows are copied to
// it and back. Its streams record, unlike the CPU's.
class TestDevice : public Device {
 public:
  explicit TestDevice(bool copies, std::string id = "cpu:0")
      : cpu_(MakeCpuDevice()), info_(cpu_->info()) {
    info_.id = std::move(id);
    if (copies) info_.zero_copy_input_bytes = info_.zero_copy_output_bytes = 0;
  }

  void Lose(const absl::Status& status) {
    std::lock_guard lock(mutex_);
    lost_ = status;
  }

  const DeviceInfo& info() const override { return info_; }
  void SetBatchInvariant() override { info_.batch_invariant = true; }
  MemoryUse memory() const override { return cpu_->memory(); }
  absl::Status health() const override {
    std::lock_guard lock(mutex_);
    return lost_;
  }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(uint64_t bytes, MemoryKind kind) override {
    if (kind == MemoryKind::kDevice) ++device_allocations;
    return cpu_->Allocate(bytes, kind);
  }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    return std::make_unique<RecordingStream>(cpu_->CreateStream().value(), graphs);
  }
  uint64_t WeightBytes(const WeightSpec& spec) const override { return cpu_->WeightBytes(spec); }
  absl::StatusOr<std::unique_ptr<Reservation>> Reserve(uint64_t bytes) override {
    return cpu_->Reserve(bytes);
  }
  absl::StatusOr<std::unique_ptr<DeviceWeight>> Upload(const CanonicalWeight& weight,
                                                       Reservation* reservation) override {
    return cpu_->Upload(weight, reservation);
  }
  absl::StatusOr<ConstMatrixView> DenseView(const DeviceWeight& weight) const override {
    return cpu_->DenseView(weight);
  }
  uint64_t WorkspaceBytes(const Problem& problem, const Choice& choice) const override {
    return cpu_->WorkspaceBytes(problem, choice);
  }
  absl::Status Matmul(const MatmulArgs& args, const Choice& choice, void* workspace,
                      Stream& stream) override {
    return cpu_->Matmul(args, choice, workspace, stream);
  }
  absl::Status Dequantize(const DequantizeArgs& args, const Choice& choice, void* workspace,
                          Stream& stream) override {
    return cpu_->Dequantize(args, choice, workspace, stream);
  }
  absl::Status NormQuant(const NormQuantArgs& args, const Choice& choice, void* workspace,
                         Stream& stream) override {
    return cpu_->NormQuant(args, choice, workspace, stream);
  }
  absl::Status SiluMulQuant(const SiluMulQuantArgs& args, const Choice& choice, void* workspace,
                            Stream& stream) override {
    return cpu_->SiluMulQuant(args, choice, workspace, stream);
  }

  std::atomic<int> device_allocations{0};
  RecordingCounts graphs;

 private:
  std::unique_ptr<Device> cpu_;
  DeviceInfo info_;
  mutable std::mutex mutex_;
  absl::Status lost_;
};

// Row by row: out = a * 100 + b + constant, all I32.
class WeightedSum : public server::Operation {
 public:
  explicit WeightedSum(int32_t constant = 0) : constant_(constant) {
    input_row_bytes_ = {4, 4};
    output_row_bytes_ = {4};
  }
  std::span<const std::byte> constant() const override {
    return std::as_bytes(std::span(&constant_, 1));
  }
  Problem ProblemFor(int64_t rows) const override {
    Problem problem;
    problem.op = Op::kSiluMulQuant;
    problem.m = rows;
    problem.d = 1;
    return problem;
  }
  absl::Status Launch(Device&, const Choice&, const server::LaunchArgs& args,
                      Stream& stream) const override {
    return static_cast<RecordingStream&>(stream).Enqueue([this, args]() -> absl::Status {
      if (!failure.ok()) return failure;
      const auto* a = static_cast<const int32_t*>(args.inputs[0]);
      const auto* b = static_cast<const int32_t*>(args.inputs[1]);
      const auto constant = *static_cast<const int32_t*>(args.constant);
      for (int64_t row = 0; row < args.rows; ++row) {
        static_cast<int32_t*>(args.outputs[0])[row] = a[row] * 100 + b[row] + constant;
      }
      return absl::OkStatus();
    });
  }
  bool repeats() const override { return repeating; }
  void CountBatch(int64_t rows, double) const override { rows_counted += rows; }

  absl::Status failure;
  bool repeating = true;
  mutable std::atomic<int64_t> rows_counted{0};

 private:
  const int32_t constant_;
};

// A request of WeightedSum with memory of its own.
struct SumRequest {
  SumRequest(std::shared_ptr<const server::Operation> operation, std::vector<int32_t> a_rows,
             std::vector<int32_t> b_rows)
      : a(std::move(a_rows)), b(std::move(b_rows)), out(a.size(), -1) {
    job = std::make_shared<server::Job>();
    job->operation = std::move(operation);
    job->inputs = {{server::ByteSpans(std::as_bytes(std::span(a))), 4},
                   {server::ByteSpans(std::as_bytes(std::span(b))), b.size() == 1 ? 0 : 4}};
    job->outputs = {reinterpret_cast<std::byte*>(out.data())};
  }
  std::vector<int32_t> a;
  std::vector<int32_t> b;  // one element repeats for every row
  std::vector<int32_t> out;
  std::shared_ptr<server::Job> job;
};

}  // namespace nibble::testing

#endif  // NIBBLE_TESTS_UNIT_EXECUTOR_FIXTURE_H_
