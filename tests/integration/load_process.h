// nibble-load as a process of its own, which a test can kill.
#ifndef NIBBLE_TESTS_INTEGRATION_LOAD_PROCESS_H_
#define NIBBLE_TESTS_INTEGRATION_LOAD_PROCESS_H_

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "tests/support/server_process.h"

namespace nibble::testing {

// Calls a weight until it is killed.
class LoadProcess {
 public:
  LoadProcess(const ServerProcess& server, const std::string& weight,
              std::vector<std::string> arguments) {
    std::vector<std::string> all = {NIBBLE_LOAD_BINARY,
                                    "--server",
                                    server.data_address(),
                                    "--control",
                                    server.control_address(),
                                    "--weight",
                                    weight,
                                    "--requests",
                                    "100000000",
                                    "--warmup",
                                    "0"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& argument : all) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      execv(NIBBLE_LOAD_BINARY, argv.data());
      _exit(127);
    }
  }
  ~LoadProcess() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace nibble::testing

#endif  // NIBBLE_TESTS_INTEGRATION_LOAD_PROCESS_H_
