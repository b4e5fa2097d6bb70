// A device whose matmuls compute nothing and take the time that a test says, on a fake clock.
#ifndef NIBBLE_TESTS_SUPPORT_SCRIPTED_DEVICE_H_
#define NIBBLE_TESTS_SUPPORT_SCRIPTED_DEVICE_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nibble/backend.h"
#include "tests/support/fake_clock.h"

namespace nibble::testing {

// Thread safe. Outlives its weights and buffers.
class ScriptedDevice final : public Device {
 public:
  struct Launch {
    std::string_view kernel;
    int64_t m = 0;
    const DeviceWeight* weight = nullptr;
  };
  // The time in microseconds of a launch, or why it fails.
  using Script = std::function<StatusOr<double>(const Launch& launch)>;

  ScriptedDevice(BackendKind kind, FakeClock& clock, Script script)
      : clock_(clock), script_(std::move(script)) {
    info_.id = "scripted:0";
    info_.name = "a scripted device";
    info_.kind = kind;
    info_.compute_capability = kind == BackendKind::kCuda ? 90 : 0;
    info_.memory_bytes = uint64_t{64} << 30;
  }

  void Rename(std::string name) { info_.name = std::move(name); }
  void Lose(Status why) {
    std::lock_guard lock(mutex_);
    health_ = std::move(why);
  }
  std::vector<Launch> launches() const {
    std::lock_guard lock(mutex_);
    return launches_;
  }
  uint64_t used_bytes() const { return memory().used_bytes; }

  const DeviceInfo& info() const override { return info_; }
  void SetBatchInvariant() override { info_.batch_invariant = true; }
  MemoryUse memory() const override {
    std::lock_guard lock(mutex_);
    return {info_.memory_bytes, used_bytes_};
  }
  Status health() const override {
    std::lock_guard lock(mutex_);
    return health_;
  }
  StatusOr<std::unique_ptr<Buffer>> Allocate(uint64_t bytes, MemoryKind) override {
    return std::make_unique<HostBuffer>(*this, bytes);
  }
  StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    return std::make_unique<ClockStream>(clock_);
  }
  uint64_t WeightBytes(const WeightSpec& spec) const override {
    return static_cast<uint64_t>(spec.n * spec.k);
  }
  StatusOr<std::unique_ptr<Reservation>> Reserve(uint64_t) override {
    return std::make_unique<Reservation>();
  }
  StatusOr<std::unique_ptr<DeviceWeight>> Upload(const CanonicalWeight& weight,
                                                 Reservation*) override {
    return std::make_unique<Weight>(weight.spec, WeightBytes(weight.spec));
  }
  StatusOr<ConstMatrixView> DenseView(const DeviceWeight&) const override { return Nothing(); }
  uint64_t WorkspaceBytes(const Problem&, const Choice&) const override { return 256; }
  Status Matmul(const MatmulArgs& args, const Choice& choice, void*, Stream&) override {
    const Launch launch{choice.kernel, args.x.rows, args.weight};
    {
      std::lock_guard lock(mutex_);
      launches_.push_back(launch);
    }
    const StatusOr<double> us = script_(launch);
    if (!us.ok()) return us.status();
    clock_.Advance(std::chrono::duration_cast<FakeClock::Duration>(
        std::chrono::duration<double, std::micro>(*us)));
    return absl::OkStatus();
  }
  Status Dequantize(const DequantizeArgs&, const Choice&, void*, Stream&) override {
    return Nothing();
  }
  Status NormQuant(const NormQuantArgs&, const Choice&, void*, Stream&) override {
    return Nothing();
  }
  Status SiluMulQuant(const SiluMulQuantArgs&, const Choice&, void*, Stream&) override {
    return Nothing();
  }

 private:
  struct HostBuffer final : Buffer {
    HostBuffer(ScriptedDevice& owner, uint64_t bytes)
        : HostBuffer(owner, std::make_unique<std::byte[]>(bytes), bytes) {}
    HostBuffer(ScriptedDevice& owner, std::unique_ptr<std::byte[]> bytes, uint64_t count)
        : Buffer(bytes.get(), count), device(owner), memory(std::move(bytes)) {
      std::lock_guard lock(device.mutex_);
      device.used_bytes_ += count;
    }
    ~HostBuffer() override {
      std::lock_guard lock(device.mutex_);
      device.used_bytes_ -= size();
    }
    ScriptedDevice& device;
    std::unique_ptr<std::byte[]> memory;
  };

  struct Weight final : DeviceWeight {
    Weight(const WeightSpec& spec, uint64_t bytes) : DeviceWeight(spec, bytes, 1.0f) {}
  };

  // Everything enqueued is done when the call that enqueued it returns.
  class ClockStream final : public Stream {
   public:
    explicit ClockStream(FakeClock& clock) : clock_(clock) {}
    Status Copy(void*, const void*, uint64_t) override { return absl::OkStatus(); }
    Status Synchronize() override { return absl::OkStatus(); }
    Status Mark(int slot) override {
      marks_[static_cast<size_t>(slot)] = clock_.Now();
      return absl::OkStatus();
    }
    StatusOr<double> MicrosecondsBetween(int begin, int end) override {
      return server::MicrosecondsBetween(marks_[static_cast<size_t>(begin)],
                                         marks_[static_cast<size_t>(end)]);
    }
    Status BeginCapture() override { return Nothing(); }
    StatusOr<std::unique_ptr<Graph>> EndCapture() override { return Nothing(); }
    Status Launch(Graph&) override { return Nothing(); }

   private:
    FakeClock& clock_;
    std::array<FakeClock::TimePoint, 4> marks_{};
  };

  static Status Nothing() {
    return absl::UnimplementedError("a scripted device has matmuls alone");
  }

  FakeClock& clock_;
  const Script script_;
  DeviceInfo info_;
  mutable std::mutex mutex_;
  Status health_;
  uint64_t used_bytes_ = 0;
  std::vector<Launch> launches_;
};

}  // namespace nibble::testing

#endif  // NIBBLE_TESTS_SUPPORT_SCRIPTED_DEVICE_H_
