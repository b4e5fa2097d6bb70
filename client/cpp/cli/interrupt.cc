#include "client/cpp/cli/interrupt.h"

#include <algorithm>

namespace nibble::cli {
namespace {

std::atomic<bool> g_asked{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");
Interrupt* g_interrupt = nullptr;

}  // namespace

Interrupt::Interrupt() {
  g_asked.store(false);
  g_interrupt = this;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = &OnSignal;
    sigemptyset(&action.sa_mask);
    sigaction(kSignals[i], &action, nullptr);
  }
}

Interrupt::~Interrupt() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  g_interrupt = nullptr;
}

const std::atomic<bool>& Interrupt::asked() const { return g_asked; }

void Interrupt::OnSignal(int signal) {
  const auto* const found = std::find(kSignals.begin(), kSignals.end(), signal);
  sigaction(signal, &g_interrupt->before_[static_cast<size_t>(found - kSignals.begin())], nullptr);
  g_asked.store(true);
}

}  // namespace nibble::cli
