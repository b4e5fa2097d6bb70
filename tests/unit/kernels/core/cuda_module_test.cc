// What opening the CUDA backend answers where it cannot be opened.
#include "nibble/cuda_module.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

void ExpectRefused(const Status& status, const std::string& part) {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(MessageOf(status)), HasSubstr(part));
}

TEST(OpenCudaDevices, NamesTheModuleThatIsNotThere) {
  const std::string path = ::testing::TempDir() + "no_such_module.so";
  ExpectRefused(OpenCudaDevices(path).status(), path);
}

TEST(OpenCudaDevices, TakesThePathOfTheEnvironment) {
  const std::string path = ::testing::TempDir() + "named_by_the_environment.so";
  ASSERT_EQ(setenv("NIBBLE_CUDA_MODULE", path.c_str(), 1), 0);
  ExpectRefused(OpenCudaDevices().status(), path);
  unsetenv("NIBBLE_CUDA_MODULE");
}

TEST(OpenCudaDevices, RefusesAFileThatIsNoModule) {
  const std::string path = ::testing::TempDir() + "nibble_cuda_module_test.so";
  std::ofstream(path) << "no shared object";
  ExpectRefused(OpenCudaDevices(path).status(), "CUDA backend: ");
  std::remove(path.c_str());
}

}  // namespace
}  // namespace nibble
