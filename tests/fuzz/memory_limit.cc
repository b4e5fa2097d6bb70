#include "tests/fuzz/memory_limit.h"

#include <sanitizer/allocator_interface.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <limits>

// Freed memory is not kept for long, so that many short runs stay small.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "quarantine_size_mb=16:detect_stack_use_after_return=1:strict_string_checks=1";
}

namespace nibble::fuzz {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

std::atomic<int64_t> held_bytes{0};
std::atomic<int64_t> limit_bytes{kNone};

void OnMalloc(const volatile void*, size_t bytes) {
  const int64_t held =
      held_bytes.fetch_add(static_cast<int64_t>(bytes)) + static_cast<int64_t>(bytes);
  const int64_t limit = limit_bytes.load();
  if (held <= limit) return;
  limit_bytes.store(kNone);  // the report allocates too
  std::fprintf(stderr, "fuzz: %zu bytes more make the heap %lld bytes larger than allowed\n", bytes,
               static_cast<long long>(held - limit));
  std::abort();
}

void OnFree(const volatile void* address) {
  if (address == nullptr) return;
  held_bytes.fetch_sub(
      static_cast<int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(address))));
}

}  // namespace

MemoryLimit::MemoryLimit(int64_t input_bytes) {
  static const bool installed = __sanitizer_install_malloc_and_free_hooks(&OnMalloc, &OnFree) != 0;
  if (!installed) {
    std::fprintf(stderr, "fuzz: cannot watch the heap\n");
    std::abort();
  }
  limit_bytes.store(held_bytes.load() + input_bytes + kSlackBytes);
}

MemoryLimit::~MemoryLimit() { limit_bytes.store(kNone); }

}  // namespace nibble::fuzz
