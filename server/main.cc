// nibbled: reads its configuration, serves until SIGTERM or SIGINT, drains, ends.
//
// Exit codes: 0 drained; 1 start failed; 2 wrong configuration; 3 device lost; 4 the drain did not
// end; 128 + n ended by a second signal n.
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>

#include "nibble/status.h"
#include "server/accept.h"
#include "server/config/config.h"
#include "server/log/log.h"
#include "server/server.h"

namespace {

namespace server = nibble::server;
namespace log = nibble::server::log;

constexpr int kExitStartFailed = 1;
constexpr int kExitConfiguration = 2;
constexpr int kExitDeviceLost = 3;
constexpr int kExitNotDrained = 4;

// Past the drain's own time: a device that hangs must not keep the process.
constexpr std::chrono::milliseconds kEndTime{5000};

// Sent to this process by itself: a device is lost, or a model could not be loaded.
constexpr int kFatalSignal = SIGUSR1;

sigset_t HandledSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, kFatalSignal);
  return set;
}

int Wait(const sigset_t& set) {
  int signal = 0;
  while (sigwait(&set, &signal) != 0) {
  }
  return signal;
}

// The signal, or 0 after `limit`.
int WaitFor(const sigset_t& set, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
        end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return 0;
    constexpr int64_t kSecond = 1'000'000'000;
    const timespec timeout{left.count() / kSecond, left.count() % kSecond};
    if (const int signal = sigtimedwait(&set, nullptr, &timeout); signal > 0) return signal;
  }
}

// Drains while a second signal can still end the process at once, and while there is time.
void DrainOrDie(server::Server& server, const sigset_t& signals, const std::atomic<int>& fatal,
                std::chrono::milliseconds limit) {
  std::thread second([&signals, &fatal, limit] {
    const int signal = WaitFor(signals, limit);
    if (signal == 0) {
      log::Error("drain_hangs", {{"ms", limit.count()}});
      _exit(fatal != 0 ? fatal.load() : kExitNotDrained);
    }
    log::Warn("second_signal", {{"signal", signal}});
    _exit(signal == kFatalSignal && fatal != 0 ? fatal.load() : 128 + signal);
  });
  second.detach();
  server.Drain();
}

int Serve(const server::Config& config) {
  // Blocked before any thread starts, so that every thread inherits it and only sigwait takes them.
  // As PID 1 the default actions would not end the process.
  static const sigset_t signals = HandledSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  server::UseAllDescriptors();

  static std::atomic<int> fatal{0};
  const auto end_with = [](int code) {
    fatal = code;
    kill(getpid(), kFatalSignal);
  };
  auto started = server::Server::Start(
      config, [&end_with](const absl::Status&) { end_with(kExitDeviceLost); });
  if (!started.ok()) {
    log::Error("start_failed", {{"error", nibble::MessageOf(started.status())}});
    return kExitStartFailed;
  }
  server::Server& server = **started;
  std::thread loader([&] {
    const absl::Status loaded = server.LoadModels();
    if (loaded.ok() || absl::IsCancelled(loaded)) return;
    log::Error("model_failed", {{"error", nibble::MessageOf(loaded)}});
    end_with(kExitStartFailed);
  });
  const int signal = Wait(signals);
  log::Info("signal", {{"signal", signal}});
  DrainOrDie(server, signals, fatal,
             std::chrono::milliseconds(config.drain_grace_ms + config.drain_timeout_ms) + kEndTime);
  loader.join();
  if (fatal == 0) return 0;
  // A lost device may hang whatever is still destroyed in order.
  _exit(fatal);
}

}  // namespace

int main(int argc, char** argv) {
  const auto config = server::ParseConfig(argc, argv);
  if (!config.ok()) {
    std::fprintf(stderr, "nibbled: %s\nTry --help.\n",
                 std::string(nibble::MessageOf(config.status())).c_str());
    return kExitConfiguration;
  }
  if (config->help) {
    std::fputs(server::HelpText().c_str(), stdout);
    return 0;
  }
  if (config->version) {
    std::printf("nibbled %s\n", NIBBLE_VERSION);
    return 0;
  }
  if (config->check_config) {
    std::fputs(server::ToYaml(*config).c_str(), stdout);
    return 0;
  }
  log::SetLevel(config->log_level);
  return Serve(*config);
}
