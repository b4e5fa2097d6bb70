// A bound on the heap that one input may make the code under test hold.
#ifndef NIBBLE_TESTS_FUZZ_MEMORY_LIMIT_H_
#define NIBBLE_TESTS_FUZZ_MEMORY_LIMIT_H_

#include <cstdint>

namespace nibble::fuzz {

// What may be held beside the bytes of the input.
inline constexpr int64_t kSlackBytes = int64_t{64} << 20;

// While it lives, the heap of all threads together may grow by `input_bytes` and the slack; the
// allocation that goes over ends the run as a finding. One at a time.
class MemoryLimit {
 public:
  explicit MemoryLimit(int64_t input_bytes);
  ~MemoryLimit();
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
};

}  // namespace nibble::fuzz

#endif  // NIBBLE_TESTS_FUZZ_MEMORY_LIMIT_H_
