// Threads that help with large copies: one core copies 14 MB into staging memory slower than a
// device takes it from there.
#ifndef NIBBLE_SERVER_EXECUTOR_COPY_CREW_H_
#define NIBBLE_SERVER_EXECUTOR_COPY_CREW_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
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
  // alone while they help another. What was copied can be read on return. Meanwhile progress(n), on
  // this thread, says that what lies below n was copied: n grows with each call, at last to
  // `count`; no call if that is 0. Neither may throw.
  void Run(size_t count, const std::function<void(size_t)>& copy,
           const std::function<void(size_t)>& progress);

 private:
  // What a call of Run copies.
  struct Copies {
    const std::function<void(size_t)>& copy;
    const size_t count;
    std::atomic<size_t> next;
    std::unique_ptr<std::atomic<bool>[]> done;  // [count]

    // Copies the next one; whether there was one.
    bool Take();
  };
  void Help();

  std::mutex in_use_;  // held by the caller whom the helpers help

  std::mutex mutex_;
  std::condition_variable changed_;
  Copies* copies_ = nullptr;
  size_t call_ = 0;  // counts calls of Run, for helpers to tell a new one
  int helping_ = 0;
  bool stopping_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_EXECUTOR_COPY_CREW_H_
