// A clock that stands still until it is slept on, and a sender without a network.
#ifndef NIBBLE_TESTS_UNIT_CLIENT_LOAD_FAKE_LOAD_H_
#define NIBBLE_TESTS_UNIT_CLIENT_LOAD_FAKE_LOAD_H_

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "client/cpp/load/exchange.h"
#include "client/cpp/load/pacer.h"

namespace nibble::load {

class FakeLoadClock final : public Clock {
 public:
  int64_t NowNs() override { return now_ns_; }
  void SleepUntil(int64_t when_ns) override {
    if (when_ns > now_ns_) now_ns_ = when_ns;
  }
  void Advance(int64_t ns) { now_ns_ += ns; }

 private:
  int64_t now_ns_ = 1'000'000'000'000;
};

// Answers every request at once, as `answer` fills it in; or holds all of them until they are
// cancelled.
class FakeSender final : public Sender {
 public:
  std::function<void(Exchange&)> answer = [](Exchange&) {};
  bool hold = false;

  std::unique_ptr<Exchange> MakeExchange(size_t number) override {
    return std::make_unique<Exchange>(number);
  }

  void Start(Exchange& exchange) override {
    exchange.answer = {};
    std::lock_guard lock(mutex_);
    started_.push_back(&exchange);
    changed_.notify_all();
  }

  void Poll(int64_t wait_ns, const Ended& ended) override {
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return !started_.empty() && (!hold || cancelled_); };
    if (!changed_.wait_for(lock, std::chrono::nanoseconds(wait_ns), ready)) return;
    Exchange& exchange = *started_.front();
    started_.pop_front();
    if (cancelled_) exchange.answer.code = "CANCELLED";
    lock.unlock();
    if (exchange.answer.ok()) answer(exchange);
    ended(exchange);
  }

  void CancelAll() override {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Exchange*> started_;
  bool cancelled_ = false;
};

}  // namespace nibble::load

#endif  // NIBBLE_TESTS_UNIT_CLIENT_LOAD_FAKE_LOAD_H_
