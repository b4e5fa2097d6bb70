// A device of arithmetic alone: memory is a number, a weight takes n * k bytes of it. Uploads can
// be held and made to fail. It runs nothing.
#ifndef NIBBLE_TESTS_SUPPORT_FAKE_DEVICE_H_
#define NIBBLE_TESTS_SUPPORT_FAKE_DEVICE_H_

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "nibble/backend.h"

namespace nibble::testing {

// Thread safe. Outlives its weights and reservations.
class FakeDevice final : public Device {
 public:
  FakeDevice(std::string id, uint64_t memory_bytes) : memory_bytes_(memory_bytes) {
    info_.id = std::move(id);
    info_.name = "fake";
    info_.memory_bytes = memory_bytes;
  }

  // Uploads wait from now on, until ReleaseUploads.
  void HoldUploads() {
    std::lock_guard lock(mutex_);
    holding_ = true;
  }
  void ReleaseUploads() {
    std::lock_guard lock(mutex_);
    holding_ = false;
    changed_.notify_all();
  }
  // Returns when `count` uploads are held.
  void WaitForHeldUploads(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_ >= count; });
  }
  // The upload after `uploads` more fails, once, with `error`.
  void FailUploadAfter(int uploads, Status error) {
    std::lock_guard lock(mutex_);
    uploads_until_failure_ = uploads;
    upload_error_ = std::move(error);
  }
  void FailReserve(Status error) {
    std::lock_guard lock(mutex_);
    reserve_error_ = std::move(error);
  }
  void SetHealth(Status health) {
    std::lock_guard lock(mutex_);
    health_ = std::move(health);
  }
  // Called by every weight as it is freed, before its memory is given back.
  void OnFree(std::function<void()> on_free) {
    std::lock_guard lock(mutex_);
    on_free_ = std::move(on_free);
  }
  uint64_t used_bytes() const { return memory().used_bytes; }
  int live_weights() const {
    std::lock_guard lock(mutex_);
    return live_weights_;
  }

  const DeviceInfo& info() const override { return info_; }
  void SetBatchInvariant() override { info_.batch_invariant = true; }
  MemoryUse memory() const override {
    std::lock_guard lock(mutex_);
    return {memory_bytes_, used_bytes_};
  }
  Status health() const override {
    std::lock_guard lock(mutex_);
    return health_;
  }
  uint64_t WeightBytes(const WeightSpec& spec) const override {
    return static_cast<uint64_t>(spec.n) * static_cast<uint64_t>(spec.k);
  }

  StatusOr<std::unique_ptr<Reservation>> Reserve(uint64_t bytes) override {
    std::lock_guard lock(mutex_);
    if (!reserve_error_.ok()) return reserve_error_;
    if (bytes > memory_bytes_ - used_bytes_) return absl::ResourceExhaustedError("fake memory");
    used_bytes_ += bytes;
    return std::make_unique<FakeReservation>(*this, bytes);
  }

  StatusOr<std::unique_ptr<DeviceWeight>> Upload(const CanonicalWeight& weight,
                                                 Reservation* reservation) override {
    std::unique_lock lock(mutex_);
    ++held_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !holding_; });
    --held_;
    if (!upload_error_.ok() && uploads_until_failure_-- == 0) {
      return std::exchange(upload_error_, absl::OkStatus());
    }
    const uint64_t bytes = WeightBytes(weight.spec);
    uint64_t reserved = 0;
    if (reservation != nullptr) {
      uint64_t& left = static_cast<FakeReservation*>(reservation)->left_bytes;
      reserved = std::min(left, bytes);
      left -= reserved;
    }
    if (bytes - reserved > memory_bytes_ - used_bytes_) {
      return absl::ResourceExhaustedError("fake memory");
    }
    used_bytes_ += bytes - reserved;
    ++live_weights_;
    return std::make_unique<FakeWeight>(*this, weight, bytes);
  }

  StatusOr<std::unique_ptr<Buffer>> Allocate(uint64_t, MemoryKind) override { return Nothing(); }
  StatusOr<std::unique_ptr<Stream>> CreateStream() override { return Nothing(); }
  StatusOr<ConstMatrixView> DenseView(const DeviceWeight&) const override { return Nothing(); }
  uint64_t WorkspaceBytes(const Problem&, const Choice&) const override { return 0; }
  Status Matmul(const MatmulArgs&, const Choice&, void*, Stream&) override { return Nothing(); }
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
  struct FakeReservation final : Reservation {
    FakeReservation(FakeDevice& owner, uint64_t bytes) : device(owner), left_bytes(bytes) {}
    ~FakeReservation() override {
      std::lock_guard lock(device.mutex_);
      device.used_bytes_ -= left_bytes;
    }
    FakeDevice& device;
    uint64_t left_bytes;
  };

  struct FakeWeight final : DeviceWeight {
    FakeWeight(FakeDevice& owner, const CanonicalWeight& weight, uint64_t bytes)
        : DeviceWeight(weight.spec, bytes, weight.input_scale), device(owner) {}
    ~FakeWeight() override {
      std::unique_lock lock(device.mutex_);
      const std::function<void()> on_free = device.on_free_;
      lock.unlock();
      if (on_free) on_free();
      lock.lock();
      device.used_bytes_ -= bytes();
      --device.live_weights_;
    }
    FakeDevice& device;
  };

  static Status Nothing() { return absl::UnimplementedError("the fake device runs nothing"); }

  DeviceInfo info_;
  const uint64_t memory_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t used_bytes_ = 0;
  int live_weights_ = 0;
  bool holding_ = false;
  int held_ = 0;
  int uploads_until_failure_ = 0;
  Status upload_error_;
  Status reserve_error_;
  Status health_;
  std::function<void()> on_free_;
};

}  // namespace nibble::testing

#endif  // NIBBLE_TESTS_SUPPORT_FAKE_DEVICE_H_
