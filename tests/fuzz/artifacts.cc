// Where libFuzzer leaves an input that fails: in findings/ beside the binary, as run.sh has it,
// also when somebody starts a target by hand. Its own default is the working directory.
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

// libFuzzer reads its flags after this; of two the later one counts.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  std::error_code error;
  const std::filesystem::path binary = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return 0;
  const std::string findings = (binary.parent_path() / "findings").string();
  mkdir(findings.c_str(), 0777);  // it may be there
  static std::string flag = "-artifact_prefix=" + findings + "/" + binary.filename().string() + "-";
  static std::vector<char*> arguments(*argv, *argv + *argc);
  arguments.insert(arguments.begin() + 1, flag.data());
  *argc = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  *argv = arguments.data();
  return 0;
}
