#include <malloc.h>
#include <unistd.h>

#include <exception>
#include <iostream>

#include "client/cpp/load/program.h"

int main(int argc, char** argv) {
  // As in the `nibble` command: buffers of megabytes are reused, not mapped anew for each message.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const nibble::cli::Io io{std::cout, std::cerr, isatty(STDERR_FILENO) == 1};
  try {
    return nibble::load::RunProgram({argv + 1, argv + argc}, io);
  } catch (const std::exception& error) {
    std::cerr << "nibble-load: INTERNAL: " << error.what() << '\n';
    return 1;
  }
}
