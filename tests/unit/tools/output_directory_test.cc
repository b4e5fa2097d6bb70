#include "server/tools/output_directory.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/checkpoint/checkpoint_builder.h"

namespace nibble::tools {
namespace {

namespace fs = std::filesystem;
using checkpoint::ExpectStatus;
using checkpoint::ScratchDirectory;
using ::testing::ElementsAre;

constexpr auto kExists = absl::StatusCode::kAlreadyExists;

class OutputDirectoryTest : public ::testing::Test {
 protected:
  OutputDirectoryTest() { fs::create_directory(In()); }
  std::string In() const { return scratch_.File("in"); }
  std::string Out() const { return scratch_.File("out"); }
  std::vector<std::string> Entries(const std::string& directory) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  ScratchDirectory scratch_;
};

TEST_F(OutputDirectoryTest, AppearsWholeOrNotAtAll) {
  {
    auto output = OutputDirectory::Create(Out() + "/", In(), false);
    ASSERT_TRUE(output.ok()) << output.status();
    ASSERT_TRUE(output->WriteText("a", "1").ok());
    EXPECT_FALSE(fs::exists(Out()));
  }
  EXPECT_THAT(Entries(scratch_.path()), ElementsAre("in"));
  auto output = OutputDirectory::Create(scratch_.File("new/parent/out"), In(), false);
  ASSERT_TRUE(output.ok()) << output.status();
  ASSERT_TRUE(output->WriteText("a", "1").ok());
  ASSERT_TRUE(output->Publish().ok());
  EXPECT_THAT(Entries(scratch_.File("new/parent")), ElementsAre("out"));
  EXPECT_THAT(Entries(scratch_.File("new/parent/out")), ElementsAre("a"));
}

TEST_F(OutputDirectoryTest, OnlyCheckpointsAreReplacedAndOnlyWhenForced) {
  fs::create_directory(Out());
  ExpectStatus(OutputDirectory::Create(Out(), In(), false).status(), kExists, {"--force"});
  scratch_.Write("out/thesis.txt", "mine");
  ExpectStatus(OutputDirectory::Create(Out(), In(), true).status(), kExists,
               {"no directory of a checkpoint"});
  scratch_.Write("out/model.safetensors", "old");
  ExpectStatus(OutputDirectory::Create(Out(), In(), false).status(), kExists, {"--force"});
  auto output = OutputDirectory::Create(Out(), In(), true);
  ASSERT_TRUE(output.ok()) << output.status();
  ASSERT_TRUE(output->WriteText("a", "1").ok());
  EXPECT_TRUE(fs::exists(Out() + "/thesis.txt"));  // until the end
  ASSERT_TRUE(output->Publish().ok());
  EXPECT_THAT(Entries(Out()), ElementsAre("a"));
  EXPECT_THAT(Entries(scratch_.path()), ElementsAre("in", "out"));

  scratch_.Write("file", "mine");
  ExpectStatus(OutputDirectory::Create(scratch_.File("file"), In(), true).status(), kExists,
               {"no directory"});
}

TEST_F(OutputDirectoryTest, TheInputIsNeverReplaced) {
  scratch_.Write("in/model.safetensors", "weights");
  fs::create_directory_symlink(In(), scratch_.File("link"));
  for (const std::string& path : {In(), In() + "/", In() + "/.", scratch_.path(),
                                  scratch_.File("link"), In() + "/../in", std::string("/")}) {
    EXPECT_EQ(OutputDirectory::Create(path, In(), true).status().code(),
              absl::StatusCode::kInvalidArgument)
        << path;
  }
  EXPECT_EQ(OutputDirectory::Create("", In(), true).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Entries(In()), ElementsAre("model.safetensors"));
}

TEST_F(OutputDirectoryTest, FilesOfTheModelAreCopiedWithoutWeights) {
  for (const char* name :
       {"tokenizer.json", "generation_config.json", "config.json", "model.safetensors",
        "model.safetensors.index.json", "pytorch_model.bin", ".hidden", "notes.md"}) {
    scratch_.Write(std::string("in/") + name, name);
  }
  fs::create_directory(In() + "/original");
  scratch_.Write("target.jinja", "linked");
  fs::create_symlink(scratch_.File("target.jinja"), In() + "/chat_template.jinja");
  auto output = OutputDirectory::Create(Out(), In(), false);
  ASSERT_TRUE(output.ok()) << output.status();
  const auto left_out = output->CopyOthers(In(), "config.json");
  ASSERT_TRUE(left_out.ok()) << left_out.status();
  EXPECT_THAT(*left_out, ElementsAre(".hidden", "original", "pytorch_model.bin"));
  ASSERT_TRUE(output->Publish().ok());
  EXPECT_THAT(Entries(Out()), ElementsAre("chat_template.jinja", "generation_config.json",
                                          "notes.md", "tokenizer.json"));
  EXPECT_FALSE(fs::is_symlink(Out() + "/chat_template.jinja"));
}

}  // namespace
}  // namespace nibble::tools
