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
  constexpr uint64_t kMaxBytesPerThread = uint64_t{32} << 20;
  constexpr uint64_t kMinBytesPerThread = uint64_t{4} << 20;
  // A small part of a small machine.
  const uint64_t share = HostMemoryBytes() / 16 / static_cast<uint64_t>(pool.threads());
  const uint64_t bytes_per_thread = std::min(kMaxBytesPerThread, share);
  if (bytes_per_thread < kMinBytesPerThread) return 0;
  const size_t words_per_thread = bytes_per_thread / sizeof(uint64_t);
  constexpr int kPasses = 3;
  const int64_t threads = pool.threads();
  std::vector<std::vector<uint64_t>> buffers(static_cast<size_t>(threads));
  std::atomic<bool> short_of_memory{false};
  std::atomic<uint64_t> checksum{0};  // keeps the reads from being optimized away
  // Each thread touches its own buffer first, so that the pages lie near it.
  pool.ParallelFor(threads, [&](int64_t part, int) {
    try {
      buffers[static_cast<size_t>(part)].assign(words_per_thread, 1);
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
    const double bytes = static_cast<double>(threads) * static_cast<double>(bytes_per_thread);
    best = std::max(best, bytes / std::max(seconds.count(), 1e-9));
  }
  return best;
}

}  // namespace nibble::cpu
