// A device whose behaviour the tests choose, over the CPU backend, and an operation that is easy to
// check.
#ifndef NIBBLE_TESTS_UNIT_EXECUTOR_FIXTURE_H_
#define NIBBLE_TESTS_UNIT_EXECUTOR_FIXTURE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
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

// Forwards to a CPU device. With `copies` it claims memory of its own, so that rows are copied to
// it and back.
class TestDevice : public Device {
 public:
  explicit TestDevice(bool copies, std::string id = "cpu:0")
      : cpu_(MakeCpuDevice()), info_(cpu_->info()) {
    info_.id = std::move(id);
    if (copies) info_.zero_copy_bytes = 0;
  }

  void Lose(const absl::Status& status) {
    std::lock_guard lock(mutex_);
    lost_ = status;
  }

  const DeviceInfo& info() const override { return info_; }
  MemoryUse memory() const override { return cpu_->memory(); }
  absl::Status health() const override {
    std::lock_guard lock(mutex_);
    return lost_;
  }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(uint64_t bytes, MemoryKind kind) override {
    if (kind == MemoryKind::kDevice) ++device_allocations;
    return cpu_->Allocate(bytes, kind);
  }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override { return cpu_->CreateStream(); }
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
                      Stream&) const override {
    if (!failure.ok()) return failure;
    const auto* a = static_cast<const int32_t*>(args.inputs[0]);
    const auto* b = static_cast<const int32_t*>(args.inputs[1]);
    const auto constant = *static_cast<const int32_t*>(args.constant);
    for (int64_t row = 0; row < args.rows; ++row) {
      static_cast<int32_t*>(args.outputs[0])[row] = a[row] * 100 + b[row] + constant;
    }
    return absl::OkStatus();
  }
  void CountBatch(int64_t rows, double) const override { rows_counted += rows; }

  absl::Status failure;
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
