// What the main functions of measuring programs share.
#ifndef NIBBLE_TESTS_BENCH_BENCH_MAIN_H_
#define NIBBLE_TESTS_BENCH_BENCH_MAIN_H_

#include <cstdio>
#include <map>
#include <string>
#include <string_view>

#include "fmt/format.h"
#include "nibble/status.h"

namespace nibble::bench {

// Reads "--flag VALUE" pairs into `flags` and runs `run`; the exit code. `usage` begins with the
// program's name.
template <typename Run>
int BenchMain(int argc, char** argv, const std::map<std::string_view, std::string*>& flags,
              std::string_view usage, Run run) {
  for (int i = 1; i < argc; i += 2) {
    const auto flag = flags.find(argv[i]);
    if (flag == flags.end() || i + 1 == argc) {
      fmt::print(stderr, "usage: {}\n", usage);
      return 2;
    }
    *flag->second = argv[i + 1];
  }
  const Status status = run();
  if (status.ok()) return 0;
  fmt::print(stderr, "{}: {}\n", usage.substr(0, usage.find(' ')), MessageOf(status));
  return 1;
}

}  // namespace nibble::bench

#endif  // NIBBLE_TESTS_BENCH_BENCH_MAIN_H_
