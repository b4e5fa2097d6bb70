#include "tests/support/server_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "fmt/format.h"

namespace nibble::testing {

ServerProcess::ServerProcess(std::vector<std::string> flags) {
  std::string pattern = (std::filesystem::temp_directory_path() / "nibbled-test-XXXXXX").string();
  directory_ = mkdtemp(pattern.data());
  const std::string port_file = directory_ + "/ports";
  // The flags of a test come last, so that they win.
  std::vector<std::string> args = {NIBBLED_BINARY,
                                   "--listen=127.0.0.1:0",
                                   "--control-listen=127.0.0.1:0",
                                   "--metrics-listen=127.0.0.1:0",
                                   "--drain-grace-ms=0",
                                   "--port-file=" + port_file};
  args.insert(args.end(), std::make_move_iterator(flags.begin()),
              std::make_move_iterator(flags.end()));
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);

  std::array<int, 2> pipe_fds{};
  if (pipe2(pipe_fds.data(), O_CLOEXEC) != 0) std::abort();
  pid_ = fork();
  if (pid_ == 0) {
    // The server ends with the test, also when the test crashes, and never holds its output open.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(pipe_fds[1], STDOUT_FILENO);
    dup2(pipe_fds[1], STDERR_FILENO);
    execv(NIBBLED_BINARY, argv.data());
    _exit(127);
  }
  close(pipe_fds[1]);
  if (pid_ < 0) {
    reaped_ = true;
    exit_code_ = 127;
  }
  reader_ = std::thread([this, fd = pipe_fds[0]] { ReadLog(fd); });
  if (WaitForLog("event=listening")) ReadPorts(port_file);
}

ServerProcess::~ServerProcess() {
  if (!reaped_) {
    kill(pid_, SIGKILL);
    ExitCode();
  }
  reader_.join();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void ServerProcess::ReadLog(int fd) {
  std::array<char, 4096> block{};
  while (true) {
    const ssize_t got = read(fd, block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    std::lock_guard lock(mutex_);
    if (got <= 0) {
      log_closed_ = true;
    } else {
      log_.append(block.data(), static_cast<size_t>(got));
    }
    changed_.notify_all();
    if (got <= 0) break;
  }
  close(fd);
}

bool ServerProcess::WaitForLog(std::string_view text) {
  std::unique_lock lock(mutex_);
  const auto seen = [&] { return log_.find(text) != std::string::npos; };
  changed_.wait(lock, [&] { return log_closed_ || seen(); });
  return seen();
}

std::string ServerProcess::log() {
  std::lock_guard lock(mutex_);
  return log_;
}

void ServerProcess::ReadPorts(const std::string& path) {
  // Written before the line that was waited for.
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const size_t equals = line.find('=');
    ports_[line.substr(0, equals)] = std::stoi(line.substr(equals + 1));
  }
}

std::string ServerProcess::Address(const std::string& plane) const {
  const auto found = ports_.find(plane);
  return fmt::format("127.0.0.1:{}", found == ports_.end() ? 0 : found->second);
}

void ServerProcess::Signal(int signal) { kill(pid_, signal); }

int ServerProcess::ExitCode() {
  if (reaped_) return exit_code_;
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return exit_code_;
}

std::string ServerProcess::HttpGet(const std::string& path) const {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(metrics_port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request =
        fmt::format("GET {} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    std::array<char, 4096> block{};
    for (ssize_t got; (got = recv(fd, block.data(), block.size(), 0)) > 0;) {
      answer.append(block.data(), static_cast<size_t>(got));
    }
  }
  close(fd);
  const size_t body = answer.find("\r\n\r\n");
  return body == std::string::npos ? std::string() : answer.substr(body + 4);
}

}  // namespace nibble::testing
