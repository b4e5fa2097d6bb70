// Threads that help with large copies: one core copies 14 MB into staging memory slower than a
// device takes it from there.
#ifndef NIBBLE_SERVER_EXECUTOR_COPY_CREW_H_
#define NIBBLE_SERVER_EXECUTOR_COPY_CREW_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace nibble::server {

class CopyCrew {
 public:
  explicit CopyCrew(int helpers);
  ~CopyCrew();
  CopyCrew(const CopyCrew&) = delete;
  CopyCrew& operator=(const CopyCrew&) = delete;

  // Calls copy(i) once for every i below `count`, on this thread and on the helpers; on this thread
  // alone while they help another. What was copied can be read on return.
  void Run(size_t count, const std::function<void(size_t)>& copy);

 private:
  void Help();
  void TakeParts(const std::function<void(size_t)>& copy, size_t count);

  std::mutex in_use_;  // held by the caller whom the helpers help

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(size_t)>* copy_ = nullptr;
  size_t count_ = 0;
  size_t call_ = 0;  // counts calls of Run, for helpers to tell a new one
  int helping_ = 0;
  bool stopping_ = false;

  std::atomic<size_t> next_{0};
  std::vector<std::thread> threads_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_EXECUTOR_COPY_CREW_H_
