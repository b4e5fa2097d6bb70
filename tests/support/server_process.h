// The real nibbled binary as a child process, with its log lines and its ports.
#ifndef NIBBLE_TESTS_SUPPORT_SERVER_PROCESS_H_
#define NIBBLE_TESTS_SUPPORT_SERVER_PROCESS_H_

#include <sys/types.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace nibble::testing {

class ServerProcess {
 public:
  // Starts nibbled on free ports with `flags` beside the ones that choose them, and waits until it
  // listens. After a failed start the ports are 0 and ExitCode() tells why.
  explicit ServerProcess(std::vector<std::string> flags);
  // Kills the process if it still runs.
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  std::string data_address() const { return Address("data"); }
  std::string control_address() const { return Address("control"); }
  int metrics_port() const { return ports_.contains("metrics") ? ports_.at("metrics") : 0; }
  pid_t pid() const { return pid_; }

  // Blocks until the log holds a line with this text, or the process has ended; false in the second
  // case.
  bool WaitForLog(std::string_view text);
  std::string log();

  void Signal(int signal);
  // Blocks until the process has ended: its exit code, or -n when signal n killed it.
  int ExitCode();

  // The body that GET `path` of the metrics listener answers.
  std::string HttpGet(const std::string& path) const;

 private:
  std::string Address(const std::string& plane) const;
  void ReadLog(int fd);
  void ReadPorts(const std::string& path);

  pid_t pid_ = -1;
  std::map<std::string, int> ports_;
  std::string directory_;
  std::thread reader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string log_;
  bool log_closed_ = false;
  bool reaped_ = false;
  int exit_code_ = 0;
};

}  // namespace nibble::testing

#endif  // NIBBLE_TESTS_SUPPORT_SERVER_PROCESS_H_
