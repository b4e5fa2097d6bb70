#include "kernels/cpu/host.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <new>
#include <vector>

namespace nibble::cpu {

std::string ProcessorName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line)) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) break;
    const size_t begin = line.find_first_not_of(' ', colon + 1);
    if (begin == std::string::npos) break;
    return line.substr(begin);
  }
  return "CPU";
}

uint64_t HostMemoryBytes() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGE_SIZE);
  uint64_t bytes = pages > 0 && page_bytes > 0
                       ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes)
                       : 0;
  std::ifstream limit_file("/sys/fs/cgroup/memory.max");  // "max" where there is no limit
  uint64_t limit = 0;
  if (limit_file >> limit && limit > 0) bytes = bytes == 0 ? limit : std::min(bytes, limit);
  return bytes;
}

double MeasureReadBandwidth(ThreadPool& pool) {
  constexpr int64_t kWordsPerThread = int64_t{4} << 20;  // 32 MB
  constexpr int kPasses = 3;
  const int64_t threads = pool.threads();
  std::vector<std::vector<uint64_t>> buffers(static_cast<size_t>(threads));
  std::atomic<bool> short_of_memory{false};
  std::atomic<uint64_t> checksum{0};  // keeps the reads from being optimized away
  // Each thread touches its own buffer first, so that the pages lie near it.
  pool.ParallelFor(threads, [&](int64_t part, int) {
    try {
      buffers[static_cast<size_t>(part)].assign(kWordsPerThread, 1);
    } catch (const std::bad_alloc&) {
      short_of_memory = true;
    }
  });
  if (short_of_memory) return 0;

  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    pool.ParallelFor(threads, [&](int64_t part, int) {
      uint64_t sum = 0;
      for (const uint64_t word : buffers[static_cast<size_t>(part)]) sum += word;
      checksum += sum;
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const double bytes = static_cast<double>(threads * kWordsPerThread) * sizeof(uint64_t);
    best = std::max(best, bytes / std::max(seconds.count(), 1e-9));
  }
  return best;
}

}  // namespace nibble::cpu
