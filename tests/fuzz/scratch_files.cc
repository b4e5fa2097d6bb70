#include "tests/fuzz/scratch_files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tests/fuzz/require.h"

namespace nibble::fuzz {

ScratchFiles::ScratchFiles() {
  const char* const place = getenv("TMPDIR");
  directory_ = std::string(place != nullptr ? place : "/tmp") + "/nibble_fuzz_XXXXXX";
  if (mkdtemp(directory_.data()) != nullptr) return;
  // No finding: libFuzzer would keep the input, an empty one, for an abort and for exit() alike.
  std::fprintf(stderr, "fuzz: cannot make a directory below TMPDIR ('%s'): %s\n",
               place != nullptr ? place : "/tmp", std::strerror(errno));
  _exit(1);
}

ScratchFiles::~ScratchFiles() {
  Clear();
  rmdir(directory_.c_str());
}

std::string ScratchFiles::PathOf(std::string_view name) const {
  return directory_ + "/" + std::string(name);
}

void ScratchFiles::Write(std::string_view name, std::string_view bytes) {
  const std::string path = PathOf(name);
  // Not truncated: an older mapping of the file stays whole.
  unlink(path.c_str());
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  Require(fd >= 0, "a file of an input can be created");
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    Require(written > 0, "a file of an input can be written");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  close(fd);
  names_.emplace_back(name);
}

void ScratchFiles::Clear() {
  for (const std::string& name : names_) unlink(PathOf(name).c_str());
  names_.clear();
}

}  // namespace nibble::fuzz
