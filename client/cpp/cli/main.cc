#include <malloc.h>
#include <unistd.h>

#include <exception>
#include <iostream>

#include "client/cpp/cli/command.h"

int main(int argc, char** argv) {
  // Message buffers of megabytes are reused instead of mapped anew for each call: at 4 MiB a
  // message the page faults of fresh mappings cost many times what everything else does.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const nibble::cli::Io io{std::cout, std::cerr, isatty(STDERR_FILENO) == 1};
  try {
    return nibble::cli::RunCommandLine({argv + 1, argv + argc}, io);
  } catch (const std::exception& error) {
    std::cerr << nibble::cli::ErrorLine("INTERNAL", error.what()) << '\n';
    return 1;
  }
}
