// SIGINT, SIGTERM and SIGHUP as a wish, for a command that has something to clean up.
#ifndef NIBBLE_CLIENT_CLI_INTERRUPT_H_
#define NIBBLE_CLIENT_CLI_INTERRUPT_H_

#include <signal.h>

#include <array>
#include <atomic>

namespace nibble::cli {

// While it lives, the first of each signal sets asked(); the next one does what it did before. A
// signal that was ignored stays ignored. One at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  const std::atomic<bool>& asked() const;

 private:
  static constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};
  static void OnSignal(int signal);

  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace nibble::cli

#endif  // NIBBLE_CLIENT_CLI_INTERRUPT_H_
