#include "server/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/unit/checkpoint/checkpoint_builder.h"

namespace nibble::checkpoint {
namespace {

std::string WithLength(uint64_t length, std::string_view rest) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes.append(rest);
}

// A file of `header` and `data_bytes` bytes counting from 0.
std::string Raw(std::string_view header, size_t data_bytes) {
  std::string bytes = WithLength(header.size(), header);
  for (size_t i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i);
  return bytes;
}

absl::StatusOr<SafetensorsFile> Parse(const std::string& bytes) {
  auto owned = std::make_shared<std::vector<std::byte>>(bytes.size());
  if (!bytes.empty()) std::memcpy(owned->data(), bytes.data(), bytes.size());
  const std::span<const std::byte> view(*owned);
  return SafetensorsFile::Parse(view, std::move(owned), "file");
}

std::string Nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') +
         std::string(static_cast<size_t>(depth), ']');
}

std::string Ones(int count) {
  std::string text = "1";
  for (int i = 1; i < count; ++i) text += ",1";
  return text;
}

struct Malformed {
  std::string name;
  std::string bytes;
  std::string message;
};

std::vector<Malformed> MalformedFiles() {
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const auto entry = [](std::string_view fields) {
    return fmt::format("{{\"a\":{{{}}}}}", fields);
  };
  return {
      {"Empty", "", "0 bytes"},
      {"SevenBytes", std::string(7, '\0'), "7 bytes"},
      {"NoHeader", WithLength(0, ""), "header does not begin"},
      {"HeaderPastTheEnd", WithLength(1000, std::string(80, ' ')), "exceeds the file"},
      {"HeaderLengthAllOnes", WithLength(~uint64_t{0}, "{}"), "exceeds the limit"},
      {"HeaderLengthWrapsAround", WithLength(~uint64_t{0} - 7, "{}"), "exceeds the limit"},
      {"HeaderOverTheLimit", WithLength(100'000'001, "{}"), "exceeds the limit"},
      {"NotUtf8InName", Raw("{\"\xff\":1}", 0), "UTF-8"},
      {"NotUtf8InDType", Raw(entry("\"dtype\":\"\xc3\x28\""), 0), "UTF-8"},
      {"HeaderIsAnArray", Raw("[]", 0), "does not begin"},
      {"HeaderIsAString", Raw("\"a\"", 0), "does not begin"},
      {"ByteOrderMark", Raw("\xef\xbb\xbf{}", 0), "does not begin"},
      {"NulAfterTheJson", Raw(std::string("{}\0 ", 4), 0), "NUL"},
      {"TextAfterTheJson", Raw("{}x", 0), "valid UTF-8 JSON"},
      {"UnclosedObject", Raw("{" + a, 4), "valid UTF-8 JSON"},
      {"EntryIsANumber", Raw(R"({"a":1})", 0), "expected an object"},
      {"EntryIsAnArray", Raw(R"({"a":[]})", 0), "expected an object"},
      {"NoDType", Raw(entry(R"("shape":[4],"data_offsets":[0,4])"), 4), "no 'dtype'"},
      {"NoShape", Raw(entry(R"("dtype":"U8","data_offsets":[0,4])"), 4), "no 'shape'"},
      {"NoOffsets", Raw(entry(R"("dtype":"U8","shape":[4])"), 4), "no 'data_offsets'"},
      {"DTypeIsANumber", Raw(entry(R"("dtype":8,"shape":[4],"data_offsets":[0,4])"), 4),
       "dtype: expected a string"},
      {"ShapeIsAString", Raw(entry(R"("dtype":"U8","shape":"4","data_offsets":[0,4])"), 4),
       "shape: expected an array"},
      {"ShapeIsNested", Raw(entry(R"("dtype":"U8","shape":[[4]],"data_offsets":[0,4])"), 4),
       "non-negative integers"},
      {"FractionalDimension", Raw(entry(R"("dtype":"U8","shape":[4.0],"data_offsets":[0,4])"), 4),
       "non-negative integers"},
      {"NegativeDimension", Raw(entry(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])"), 4),
       "negative number"},
      {"NegativeOffset", Raw(entry(R"("dtype":"U8","shape":[4],"data_offsets":[-4,0])"), 4),
       "negative number"},
      {"OffsetOver64Bits",
       Raw(entry(R"("dtype":"U8","shape":[4],"data_offsets":[0,18446744073709551620])"), 4),
       "64-bit integer"},
      {"OneOffset", Raw(entry(R"("dtype":"U8","shape":[4],"data_offsets":[4])"), 4), "expected 2"},
      {"ThreeOffsets", Raw(entry(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,4])"), 4),
       "more than two"},
      {"UnknownDType", Raw(entry(R"("dtype":"F8_E4M3FN","shape":[4],"data_offsets":[0,4])"), 4),
       "unknown dtype 'F8_E4M3FN'"},
      {"BytesDoNotMatchShape", Raw(entry(R"("dtype":"F64","shape":[4],"data_offsets":[0,16])"), 16),
       "takes 32 bytes"},
      {"HugeShapeTinyOffsets",
       Raw(entry(R"("dtype":"U8","shape":[4611686018427387904],"data_offsets":[0,4])"), 4),
       "overflows"},
      {"LargeShapeTinyOffsets",
       Raw(entry(R"("dtype":"U8","shape":[1099511627776],"data_offsets":[0,4])"), 4),
       "takes 1099511627776 bytes"},
      {"DimensionOver2To62",
       Raw(entry(R"("dtype":"U8","shape":[4611686018427387905,0],"data_offsets":[0,0])"), 0),
       "exceeds 2^62"},
      {"ShapeProductOverflows",
       Raw(entry(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0),
       "overflows"},
      {"ShapeProductOverflowsBeforeAZero",
       Raw(entry(R"("dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"), 0),
       "overflows"},
      {"TooManyDimensions",
       Raw(entry(fmt::format(R"("dtype":"U8","shape":[{}],"data_offsets":[0,1])", Ones(65))), 1),
       "more than 64 dimensions"},
      {"BeginAfterEnd", Raw(entry(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"), 4),
       "before begin"},
      {"HoleAtTheStart", Raw(entry(R"("dtype":"U8","shape":[4],"data_offsets":[4,8])"), 8), "hole"},
      {"HoleInTheMiddle",
       Raw("{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})", 9), "hole"},
      {"Overlap", Raw("{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})", 7),
       "overlap"},
      {"TwoNamesOneRange",
       Raw("{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4), "overlap"},
      {"DuplicateKey", Raw("{" + a + "," + a + "}", 4), "'a' appears twice"},
      {"DuplicateField",
       Raw(entry(R"("dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4])"), 4),
       "'dtype' appears twice"},
      {"DuplicateMetadata", Raw(R"({"__metadata__":{},"__metadata__":{}})", 0),
       "'__metadata__' appears twice"},
      {"DuplicateMetadataKey", Raw(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "appears twice"},
      {"MetadataHoldsANumber", Raw(R"({"__metadata__":{"a":1}})", 0), "expected a string"},
      {"MetadataIsAString", Raw(R"({"__metadata__":"a"})", 0), "expected an object"},
      {"TrailingByte", Raw("{" + a + "}", 5), "trailing"},
      {"OneByteShort", Raw("{" + a + "}", 3), "truncated"},
      {"DataWithoutTensors", Raw("{}", 1), "trailing"},
      {"OddCountOfF4", Raw(entry(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])"), 2),
       "no whole bytes"},
      {"F6NotInWholeBytes", Raw(entry(R"("dtype":"F6_E2M3","shape":[2],"data_offsets":[0,2])"), 2),
       "no whole bytes"},
      {"IgnoredFieldTooDeep",
       Raw(entry(
               fmt::format(R"("x":{},"dtype":"U8","shape":[4],"data_offsets":[0,4])", Nested(40))),
           4),
       "nested deeper"},
  };
}

class MalformedTest : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedTest, IsRejected) {
  const auto file = Parse(GetParam().bytes);
  ASSERT_FALSE(file.ok());
  ExpectStatus(file.status(), absl::StatusCode::kInvalidArgument, {"file: ", GetParam().message});
}

INSTANTIATE_TEST_SUITE_P(Files, MalformedTest, ::testing::ValuesIn(MalformedFiles()),
                         [](const auto& malformed) { return malformed.param.name; });

TEST(SafetensorsTest, EntriesAreBounded) {
  std::string header = "{";
  for (int i = 0; i <= 262'144; ++i) {
    header += fmt::format(R"("{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}},)", i);
  }
  header.back() = '}';
  const auto file = Parse(Raw(header, 0));
  ASSERT_FALSE(file.ok());
  ExpectStatus(file.status(), absl::StatusCode::kInvalidArgument, {"more than 262144 entries"});
}

TEST(SafetensorsTest, ReadsTensorsAndMetadata) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},)"
      R"("b":{"dtype":"I16","shape":[2,1],"data_offsets":[3,7],"note":{"x":[1,null,{"y":2.5}]}},)"
      R"("a":{"data_offsets":[0,3],"shape":[3],"dtype":"U8"}})";
  const auto file = Parse(Raw(header, 7));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(file->tensors().size(), 2u);
  const TensorEntry* b = file->Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, "I16");
  EXPECT_EQ(b->shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(b->elements(), 2);
  ASSERT_EQ(b->data.size(), 4u);
  EXPECT_EQ(b->data[0], std::byte{3});
  EXPECT_EQ(b->data[3], std::byte{6});
  EXPECT_EQ(file->Find("c"), nullptr);
  EXPECT_EQ(file->Find("__metadata__"), nullptr);
}

TEST(SafetensorsTest, EmptyTensorsMayStandAnywhere) {
  for (int place : {0, 2, 4}) {
    const std::string header =
        fmt::format(R"({{"z":{{"dtype":"U8","shape":[2],"data_offsets":[0,2]}},)"
                    R"("e":{{"dtype":"F32","shape":[3,0],"data_offsets":[{0},{0}]}},)"
                    R"("f":{{"dtype":"F32","shape":[0],"data_offsets":[{0},{0}]}},)"
                    R"("y":{{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}}})",
                    place);
    const auto file = Parse(Raw(header, 4));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->Find("e")->elements(), 0);
    EXPECT_TRUE(file->Find("e")->data.empty());
  }
}

TEST(SafetensorsTest, ScalarHasOneElement) {
  const auto file = Parse(Raw(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->Find("s")->shape.empty());
  EXPECT_EQ(file->Find("s")->elements(), 1);
}

TEST(SafetensorsTest, AcceptsSpaceAroundTheHeaderAndEmptyMetadata) {
  for (std::string_view header : {"{}", " \n{}", "{}   ", R"({"__metadata__":{}})"}) {
    const auto file = Parse(Raw(header, 0));
    ASSERT_TRUE(file.ok()) << header << file.status();
    EXPECT_TRUE(file->tensors().empty());
  }
}

TEST(SafetensorsTest, SubByteTypesCountBits) {
  const auto file = Parse(Raw(R"({"a":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]},)"
                              R"("b":{"dtype":"F6_E3M2","shape":[4],"data_offsets":[3,6]}})",
                              6));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Find("a")->elements(), 6);
}

TEST(SafetensorsTest, LargestDimensionIsAccepted) {
  const auto file =
      Parse(Raw(R"({"a":{"dtype":"U8","shape":[0,4611686018427387904],"data_offsets":[0,0]}})", 0));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Find("a")->shape[1], int64_t{1} << 62);
}

TEST(SafetensorsTest, MessageHoldsNoControlCharacters) {
  const auto file = Parse(Raw(R"({"a\n\u001b[31m":1})", 0));
  ASSERT_FALSE(file.ok());
  for (char c : MessageOf(file.status())) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
}

TEST(SafetensorsTest, KnowsEveryDType) {
  EXPECT_EQ(DTypeBits("F4"), 4);
  EXPECT_EQ(DTypeBits("F6_E2M3"), 6);
  for (const char* name :
       {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}) {
    EXPECT_EQ(DTypeBits(name), 8) << name;
  }
  for (const char* name : {"I16", "U16", "F16", "BF16"}) EXPECT_EQ(DTypeBits(name), 16) << name;
  for (const char* name : {"I32", "U32", "F32"}) EXPECT_EQ(DTypeBits(name), 32) << name;
  for (const char* name : {"C64", "F64", "I64", "U64"}) EXPECT_EQ(DTypeBits(name), 64) << name;
  EXPECT_EQ(DTypeBits("f32"), 0);
}

TEST(SafetensorsTest, OpensOnlyRegularFiles) {
  const ScratchDirectory scratch;
  ExpectStatus(SafetensorsFile::Open(scratch.File("absent")).status(), absl::StatusCode::kNotFound,
               {"absent"});
  ExpectStatus(SafetensorsFile::Open(scratch.path()).status(), absl::StatusCode::kInvalidArgument,
               {"not a regular file"});
  ASSERT_EQ(mkfifo(scratch.File("pipe").c_str(), 0600), 0);
  ExpectStatus(SafetensorsFile::Open(scratch.File("pipe")).status(),
               absl::StatusCode::kInvalidArgument, {"not a regular file"});
  scratch.Write("empty", "");
  ExpectStatus(SafetensorsFile::Open(scratch.File("empty")).status(),
               absl::StatusCode::kInvalidArgument, {"empty", "at least 8"});
}

TEST(SafetensorsTest, MappedBytesOutliveTheFileObject) {
  const ScratchDirectory scratch;
  scratch.Write("m", Raw(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4));
  TensorEntry entry;
  {
    const auto file = SafetensorsFile::Open(scratch.File("m"));
    ASSERT_TRUE(file.ok()) << file.status();
    entry = *file->Find("a");
  }
  EXPECT_EQ(entry.data[3], std::byte{3});
}

std::span<const std::byte> BytesOf(const std::vector<uint8_t>& bytes) {
  return std::as_bytes(std::span(bytes));
}

TEST(SafetensorsWriteTest, RoundTripsInStrictForm) {
  const std::vector<uint8_t> three = {1, 2, 3};
  const std::vector<uint8_t> eight = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<TensorToWrite> tensors = {{"bytes", "U8", {3}, BytesOf(three)},
                                              {"z", "F32", {2}, BytesOf(eight)},
                                              {"a\"\\", "F32", {1, 2}, BytesOf(eight)},
                                              {"empty", "F64", {0, 5}, {}},
                                              {"scalar", "I64", {}, BytesOf(eight)}};
  const auto bytes = SerializeSafetensors(tensors, {{"format", "pt"}, {"note", "\n"}});
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes->data(), 8);
  EXPECT_EQ(header_bytes % 8, 0u);
  EXPECT_EQ((*bytes)[8], '{');

  const auto file = Parse(*bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors().size(), 5u);
  EXPECT_EQ(file->metadata().at("note"), "\n");
  for (const TensorToWrite& tensor : tensors) {
    const TensorEntry* entry = file->Find(tensor.name);
    ASSERT_NE(entry, nullptr) << tensor.name;
    EXPECT_EQ(entry->dtype, tensor.dtype);
    EXPECT_EQ(entry->shape, tensor.shape);
    EXPECT_TRUE(
        std::equal(entry->data.begin(), entry->data.end(), tensor.data.begin(), tensor.data.end()));
  }
  // Wide types first: every tensor is aligned to its element.
  const std::byte* base = file->Find("scalar")->data.data();
  EXPECT_EQ(file->Find("a\"\\")->data.data() - base, 8);
  EXPECT_EQ(file->Find("z")->data.data() - base, 16);
  EXPECT_EQ(file->Find("bytes")->data.data() - base, 24);
}

TEST(SafetensorsWriteTest, RejectsWhatCannotBeRead) {
  const std::vector<uint8_t> data = {1, 2, 3, 4};
  const auto write = [](std::vector<TensorToWrite> tensors) {
    return SerializeSafetensors(tensors, {}).status();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectStatus(write({{"a", "U8", {5}, BytesOf(data)}}), kInvalid, {"takes 5 bytes", "received 4"});
  ExpectStatus(write({{"a", "U9", {4}, BytesOf(data)}}), kInvalid, {"unknown dtype"});
  ExpectStatus(write({{"a", "U8", {-4}, BytesOf(data)}}), kInvalid, {"negative dimension"});
  ExpectStatus(write({{"a", "F4", {7}, BytesOf(data)}}), kInvalid, {"no whole bytes"});
  ExpectStatus(write({{"a", "U8", {4}, BytesOf(data)}, {"a", "U8", {4}, BytesOf(data)}}), kInvalid,
               {"appears twice"});
  ExpectStatus(write({{"__metadata__", "U8", {4}, BytesOf(data)}}), kInvalid, {"reserved"});
  ExpectStatus(write({{"\xff", "U8", {4}, BytesOf(data)}}), kInvalid, {"safetensors header"});
}

TEST(SafetensorsWriteTest, ReplacesTheFileAndLeavesNothingElse) {
  const ScratchDirectory scratch;
  scratch.Write("out.safetensors", "old");
  const std::vector<uint8_t> data = {1, 2, 3, 4};
  const absl::Status status =
      WriteSafetensors(scratch.File("out.safetensors"), {{"a", "U8", {4}, BytesOf(data)}}, {});
  ASSERT_TRUE(status.ok()) << status;
  const auto file = SafetensorsFile::Open(scratch.File("out.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Find("a")->data[2], std::byte{3});
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path())) {
    EXPECT_EQ(entry.path().filename(), "out.safetensors");
    ++files;
  }
  EXPECT_EQ(files, 1);
}

TEST(SafetensorsWriteTest, FailureLeavesNothing) {
  const ScratchDirectory scratch;
  std::filesystem::create_directories(scratch.File("taken/inner"));
  EXPECT_FALSE(WriteSafetensors(scratch.File("taken"), {}, {}).ok());
  EXPECT_FALSE(WriteSafetensors(scratch.File("absent/out"), {}, {}).ok());
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path())) {
    EXPECT_EQ(entry.path().filename(), "taken");
    ++files;
  }
  EXPECT_EQ(files, 1);
}

}  // namespace
}  // namespace nibble::checkpoint
