#include "server/checkpoint/mapped_file.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint.h"
#include "tests/unit/checkpoint/checkpoint_builder.h"

namespace nibble::checkpoint {
namespace {

constexpr size_t kBytes = size_t{1} << 20;

TEST(MappedFileTest, HoldsTheBytesOfTheFile) {
  const ScratchDirectory scratch;
  scratch.Write("f", "abcd");
  const auto file = MappedFile::Open(scratch.File("f"), 4);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->bytes().size(), 4u);
  EXPECT_EQ((*file)->bytes()[3], std::byte{'d'});
  EXPECT_TRUE((*file)->CheckIntact().ok());
  ExpectStatus(MappedFile::Open(scratch.File("f"), 5).status(), absl::StatusCode::kInvalidArgument,
               {"4 bytes", "at least 5"});
}

TEST(MappedFileTest, AFileThatIsCutShortReadsAsZerosAndIsNotIntact) {
  const ScratchDirectory scratch;
  for (const char* name : {"cut", "whole"}) scratch.Write(name, std::string(kBytes, 'x'));
  const auto cut = MappedFile::Open(scratch.File("cut"), 1);
  const auto whole = MappedFile::Open(scratch.File("whole"), 1);
  ASSERT_TRUE(cut.ok() && whole.ok());
  ASSERT_EQ(truncate(scratch.File("cut").c_str(), 10), 0);
  EXPECT_TRUE((*cut)->intact()) << "nothing has been read yet";
  const auto bytes = (*cut)->bytes();
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{'x'}), 10);
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0}), kBytes - 10);
  ExpectStatus((*cut)->CheckIntact(), absl::StatusCode::kInvalidArgument, {"cut", "cut short"});
  EXPECT_TRUE((*whole)->intact());
}

TEST(MappedFileTest, ManyFilesAreToldApart) {
  const ScratchDirectory scratch;
  scratch.Write("f", std::string(10000, 'x'));
  std::vector<std::shared_ptr<const MappedFile>> files;
  for (int i = 0; i < 600; ++i) {
    const auto file = MappedFile::Open(scratch.File("f"), 1);
    ASSERT_TRUE(file.ok()) << file.status();
    files.push_back(*file);
  }
  ASSERT_EQ(truncate(scratch.File("f").c_str(), 1), 0);
  EXPECT_EQ(files[555]->bytes()[9999], std::byte{0});
  for (size_t i = 0; i < files.size(); ++i) EXPECT_EQ(files[i]->intact(), i != 555) << i;
}

TEST(MappedFileTest, ACheckpointSaysThatItsFileWasCut) {
  const ScratchDirectory scratch;
  CheckpointBuilder builder;
  scratch.Write(
      "model.safetensors",
      builder.AddFloats("l.weight", DType::kF32, {64, 64}, std::vector<float>(4096, 1.0f)).Bytes());
  const auto checkpoint = Checkpoint::Open(scratch.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_EQ(truncate(scratch.File("model.safetensors").c_str(), 4096), 0);
  const auto weight = (*checkpoint)->Load(0);
  ASSERT_TRUE(weight.ok()) << weight.status();
  EXPECT_EQ(LoadAsFloat(weight->codes.data(), DType::kF32, 4095), 0.0f);
  ExpectStatus((*checkpoint)->CheckIntact(), absl::StatusCode::kInvalidArgument,
               {"model.safetensors", "cut short"});
}

}  // namespace
}  // namespace nibble::checkpoint
