// Ends calls whose peer stalls: one that does not take what was written to it, or does not send
// what it has announced. Without it such a call, when it has no deadline, would hold its memory and
// its weight for ever.
#ifndef NIBBLE_SERVER_SERVICE_STALL_WATCH_H_
#define NIBBLE_SERVER_SERVICE_STALL_WATCH_H_

#include <grpcpp/server_context.h>

#include <list>
#include <memory>

#include "absl/status/status.h"
#include "server/clock/clock.h"

namespace nibble::server {

class StallWatch {
  struct State;
  struct Entry {
    grpc_call* call = nullptr;
    Clock::TimePoint until;
    const char* what = nullptr;
    bool expired = false;
  };

 public:
  // A peer has `limit` for each message. `clock` outlives the watch.
  StallWatch(Clock& clock, std::chrono::milliseconds limit);
  // Every Wait is gone.
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  // What one call waits for, one thing at a time; a part of the call's reactor, which makes it in
  // the handler. Thread safe.
  class Wait {
   public:
    Wait(StallWatch& watch, grpc::ServerContextBase& context);
    ~Wait() { End(); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

    // From now on the peer has the limit to take what is written, or to send its next message.
    // After that the call is ended with kDeadlineExceeded.
    void ForReader() { Begin("the reply was not read"); }
    void ForWriter() { Begin("no message arrived"); }
    void End();
    // kDeadlineExceeded once the peer has been given up, else `otherwise`.
    absl::Status Explain(const absl::Status& otherwise) const;

   private:
    void Begin(const char* what);

    const std::shared_ptr<State> state_;
    std::list<Entry> own_;  // empty while it waits
    const std::list<Entry>::iterator entry_;
  };

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_STALL_WATCH_H_
