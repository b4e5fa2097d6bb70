#include "server/checkpoint/safetensors_writer.h"

#include <filesystem>

#include "gtest/gtest.h"
#include "server/checkpoint/safetensors.h"
#include "tests/unit/checkpoint/checkpoint_builder.h"

namespace nibble::checkpoint {
namespace {

std::vector<std::byte> Fill(size_t count, int value) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

const std::vector<TensorDeclaration> kDeclared = {
    {"b", "U8", {3}}, {"a", "F32", {2, 2}}, {"scalar", "I64", {}}, {"empty", "BF16", {0, 4}}};

TEST(SafetensorsWriter, TensorsComeInAnyOrderAndTheFileIsTheSameAsWrittenAtOnce) {
  const ScratchDirectory scratch;
  auto writer = SafetensorsWriter::Create(scratch.File("f"), kDeclared, {{"format", "pt"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const auto a = Fill(16, 1), b = Fill(3, 2), scalar = Fill(8, 3);
  ASSERT_TRUE((*writer)->Write("scalar", scalar).ok());
  ASSERT_TRUE((*writer)->Write("b", b).ok());
  ASSERT_TRUE((*writer)->Write("a", a).ok());
  ASSERT_TRUE((*writer)->Write("empty", {}).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_EQ((*writer)->bytes(), std::filesystem::file_size(scratch.File("f")));

  const auto file = SafetensorsFile::Open(scratch.File("f"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata().at("format"), "pt");
  EXPECT_EQ(file->tensors().size(), 4u);
  EXPECT_TRUE(std::ranges::equal(file->Find("a")->data, a));
  EXPECT_TRUE(std::ranges::equal(file->Find("b")->data, b));

  ASSERT_TRUE(WriteSafetensors(scratch.File("g"),
                               {{"a", "F32", {2, 2}, a},
                                {"b", "U8", {3}, b},
                                {"empty", "BF16", {0, 4}, {}},
                                {"scalar", "I64", {}, scalar}},
                               {{"format", "pt"}})
                  .ok());
  std::ifstream one(scratch.File("f")), other(scratch.File("g"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(one), {}),
            std::string(std::istreambuf_iterator<char>(other), {}));
}

TEST(SafetensorsWriter, WrongTensorsAreNamed) {
  const ScratchDirectory scratch;
  auto writer = SafetensorsWriter::Create(scratch.File("f"), kDeclared, {});
  ASSERT_TRUE(writer.ok());
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectStatus((*writer)->Write("c", Fill(3, 0)), kInvalid, {"'c'", "not declared"});
  ExpectStatus((*writer)->Write("b", Fill(4, 0)), kInvalid, {"'b'", "expected 3 bytes", "4"});
  ASSERT_TRUE((*writer)->Write("b", Fill(3, 0)).ok());
  ExpectStatus((*writer)->Write("b", Fill(3, 0)), kInvalid, {"'b'", "again"});
  ExpectStatus((*writer)->Finish(), kInvalid, {"'a'", "not given"});
}

TEST(SafetensorsWriter, AFileThatIsNotFinishedIsRemoved) {
  const ScratchDirectory scratch;
  {
    auto writer = SafetensorsWriter::Create(scratch.File("f"), kDeclared, {});
    ASSERT_TRUE(writer.ok());
    EXPECT_TRUE(std::filesystem::exists(scratch.File("f")));
  }
  EXPECT_FALSE(std::filesystem::exists(scratch.File("f")));
}

TEST(SafetensorsWriter, WhatIsThereIsNotTouched) {
  const ScratchDirectory scratch;
  scratch.Write("f", "mine");
  ExpectStatus(SafetensorsWriter::Create(scratch.File("f"), kDeclared, {}).status(),
               absl::StatusCode::kInvalidArgument, {"cannot create"});
  EXPECT_EQ(std::filesystem::file_size(scratch.File("f")), 4u);
  for (const std::vector<TensorDeclaration>& wrong :
       {std::vector<TensorDeclaration>{{"a", "F99", {1}}},
        {{"a", "F32", {1}}, {"a", "F32", {1}}},
        {{"__metadata__", "F32", {1}}},
        {{"a", "F32", {INT64_MAX, INT64_MAX}}}}) {
    EXPECT_FALSE(SafetensorsWriter::Create(scratch.File("new"), wrong, {}).ok());
    EXPECT_FALSE(std::filesystem::exists(scratch.File("new")));
  }
}

}  // namespace
}  // namespace nibble::checkpoint
