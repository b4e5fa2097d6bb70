// nibbled: reads its configuration, serves until SIGTERM or SIGINT, drains, ends.
//
// Exit codes: 0 drained; 1 start failed; 2 wrong configuration; 3 device lost; 128 + n ended by a
// second signal n.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
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

// Drains while a second signal can still end the process at once.
void DrainOrDie(server::Server& server, const sigset_t& signals, const std::atomic<int>& fatal) {
  std::thread second([&signals, &fatal] {
    const int signal = Wait(signals);
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
  DrainOrDie(server, signals, fatal);
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
