// What a fuzz target promises beyond not crashing.
#ifndef NIBBLE_TESTS_FUZZ_REQUIRE_H_
#define NIBBLE_TESTS_FUZZ_REQUIRE_H_

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace nibble::fuzz {

// Ends the run as a finding unless `holds`.
inline void Require(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: does not hold: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

}  // namespace nibble::fuzz

#endif  // NIBBLE_TESTS_FUZZ_REQUIRE_H_
