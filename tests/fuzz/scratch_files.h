// A directory below TMPDIR for the files of one input. libFuzzer ends a process without
// destructors, so that whoever starts one removes what is there (run.sh does).
#ifndef NIBBLE_TESTS_FUZZ_SCRATCH_FILES_H_
#define NIBBLE_TESTS_FUZZ_SCRATCH_FILES_H_

#include <string>
#include <string_view>
#include <vector>

namespace nibble::fuzz {

class ScratchFiles {
 public:
  // Aborts where no directory can be made.
  ScratchFiles();
  ~ScratchFiles();
  ScratchFiles(const ScratchFiles&) = delete;
  ScratchFiles& operator=(const ScratchFiles&) = delete;

  const std::string& directory() const { return directory_; }
  std::string PathOf(std::string_view name) const;
  // Creates or replaces a file of the directory. `name` has no path.
  void Write(std::string_view name, std::string_view bytes);
  // Removes every file.
  void Clear();

 private:
  std::string directory_;
  std::vector<std::string> names_;
};

}  // namespace nibble::fuzz

#endif  // NIBBLE_TESTS_FUZZ_SCRATCH_FILES_H_
