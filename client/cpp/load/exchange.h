// A request in flight, and what sends it. Nothing here knows of gRPC.
#ifndef NIBBLE_CLIENT_LOAD_EXCHANGE_H_
#define NIBBLE_CLIENT_LOAD_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace nibble::load {

// What one request asks for.
struct Draw {
  size_t layer = 0;       // of the workload
  int64_t rows = 1;       // M
  int64_t first_row = 0;  // of the workload's distinct rows; the others follow, cyclically
  bool check = false;     // compare the answer
};

// What came back.
struct Answer {
  std::string code;     // empty: good; else the name of a status code, such as "UNAVAILABLE"
  std::string message;  // of the error
  std::string fault;    // what is wrong with an answer that is no error; empty: nothing
  std::string kernel;
  std::string device;
  int64_t batch_rows = 0;
  int64_t queue_us = 0;
  int64_t compute_us = 0;
  // y as it came, [rows, N] little-endian; kept only where the draw is to be checked.
  std::string y;
  int64_t request_bytes = 0;
  int64_t reply_bytes = 0;

  bool ok() const { return code.empty(); }
};

// One place for a request: used over and over, by one request at a time.
class Exchange {
 public:
  explicit Exchange(size_t number) : number_(number) {}
  virtual ~Exchange() = default;

  // Below the number of exchanges of its sender; the same number always takes the same connection.
  size_t number() const { return number_; }

  Draw draw;
  // Of the run's clock: when it should have been sent, and when it was.
  int64_t intended_ns = 0;
  int64_t sent_ns = 0;
  Answer answer;

 private:
  const size_t number_;
};

// Connections and what waits on them; each sender belongs to one thread, which polls it.
class Sender {
 public:
  virtual ~Sender() = default;

  virtual std::unique_ptr<Exchange> MakeExchange(size_t number) = 0;
  // Sends what `exchange.draw` says. From any thread.
  virtual void Start(Exchange& exchange) = 0;
  // Waits up to `wait_ns` for something to happen; calls `ended` for every exchange whose answer is
  // complete. It may Start again within `ended`. One thread.
  using Ended = std::function<void(Exchange&)>;
  virtual void Poll(int64_t wait_ns, const Ended& ended) = 0;
  // Everything in flight ends soon. The polling thread.
  virtual void CancelAll() = 0;
};

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_EXCHANGE_H_
