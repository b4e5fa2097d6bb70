// Damaged files: any byte of a checkpoint may be wrong, and the answer is a status. Most of what
// this finds, it finds under the sanitizers.
//
// Where the files that are known to have gone wrong are tested. The container:
//
//   header length 0, over the file, 2^64 - 1, over 10^8   MalformedTest NoHeader, HeaderPastTheEnd,
//                                                          HeaderLengthAllOnes, HeaderOverTheLimit
//   not UTF-8, an array                                    NotUtf8InName, HeaderIsAnArray
//   offsets [0, 16] for F64 [4]                            BytesDoNotMatchShape
//   huge shape, tiny offsets; product overflow             HugeShapeTinyOffsets, ShapeProduct*
//   begin > end, hole, overlap, duplicate key              BeginAfterEnd, Hole*, Overlap,
//                                                          DuplicateKey
//   trailing byte, one byte short                          TrailingByte, OneByteShort
//   F4 with an odd count                                   OddCountOfF4
//   empty tensors, scalar, empty __metadata__              SafetensorsTest EmptyTensors*, Scalar*,
//                                                          AcceptsSpace*
//   10^7 entries over one range                            SafetensorsTest EntriesAreBounded
//
// The loaders (see tests/golden too):
//
//   zero point off by one, v1 read as v2                   GptqTest WrongVersionLabelIsRefused,
//                                                          AsymmetricV1AndV2
//   AWQ interleave of weights and zeros                    AwqTest WordGivesItsColumns*, Gemm
//   zero point 0 turned into 15                            AwqTest Gemm, GptqTest
//                                                          WrappedZerosAreCounted
//   bitsandbytes companions not recognized                 BitsandbytesTest MissingTensorsAreNamed,
//                                                          OneLayerDoesNotTakeAnothersTensors
//   block FP8 edges, block size from shapes                Fp8Test RaggedBlocks,
//                                                          BlockShapeComesFromTheConfiguration
//   FP8 scales assumed to be F32                           Fp8Test PerTensorInEveryShape*,
//                                                          ExponentScales
//   fused names against lists of exceptions                SkipListTest EveryDialect*, FuseTest
//                                                          MissingPart
//   one FP8 scale where several are expected               FuseTest Fp8Scales, Fp8Test
//                                                          MisshapenScalesAreNamed
//   head missing, tied, duplicated, quantized or not       TiedHeadTest *
//   offsets, alignment, index                              MalformedTest, CheckpointBuilder::Open
//                                                          (odd addresses), DirectoryTest Index*
//   asymmetric zero points not collected                   SchemeTest TensorsMustAgree*
//   partial last block                                     BitsandbytesTest BlocksCrossRows*
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/checkpoint/checkpoint_builder.h"

namespace nibble::checkpoint {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

struct Outcome {
  int loaded = 0;
  int refused = 0;
};

// Opens and loads everything; a layer that loads must have the size that was announced.
void Try(const std::string& bytes, const std::string& config, Outcome* outcome) {
  auto copy = std::make_shared<std::vector<char>>(bytes.begin(), bytes.end());
  const auto view = std::as_bytes(std::span(*copy));
  const auto checkpoint = Checkpoint::FromBytes(view, copy, config, "damaged");
  if (!checkpoint.ok()) {
    ASSERT_TRUE(checkpoint.status().code() == absl::StatusCode::kInvalidArgument ||
                checkpoint.status().code() == absl::StatusCode::kUnimplemented)
        << checkpoint.status();
    ++outcome->refused;
    return;
  }
  for (size_t i = 0; i < (*checkpoint)->layers().size(); ++i) {
    const auto weight = (*checkpoint)->Load(i);
    if (!weight.ok()) continue;
    std::vector<float> row(static_cast<size_t>(weight->spec.k));
    ASSERT_TRUE(DecodeReference(*weight, weight->spec.n - 1, 1, row).ok());
  }
  ++outcome->loaded;
}

class RobustnessTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string directory = std::string(NIBBLE_SOURCE_DIR) + "/tests/golden/" + GetParam();
    bytes_ = ReadAll(directory + "/model.safetensors");
    config_ = ReadAll(directory + "/config.json");
    ASSERT_GT(bytes_.size(), 8u);
    header_bytes_ = 8 + static_cast<unsigned char>(bytes_[0]) +
                    256 * static_cast<size_t>(static_cast<unsigned char>(bytes_[1]));
  }

  std::string bytes_;
  std::string config_;
  size_t header_bytes_ = 0;
};

TEST_P(RobustnessTest, DamagedHeaderIsAnswered) {
  std::mt19937 random(17);
  Outcome outcome;
  for (int round = 0; round < 400; ++round) {
    std::string bytes = bytes_;
    for (uint32_t i = 0; i <= random() % 3; ++i) {
      const size_t at = random() % header_bytes_;
      // Digits for digits now and then: those get past the JSON parser.
      const bool digit = bytes[at] >= '0' && bytes[at] <= '9';
      bytes[at] = static_cast<char>(digit ? '0' + random() % 10 : random() % 256);
    }
    Try(bytes, config_, &outcome);
  }
  EXPECT_GT(outcome.refused, 0);
}

TEST_P(RobustnessTest, DamagedDataIsAnswered) {
  std::mt19937 random(18);
  Outcome outcome;
  for (int round = 0; round < 100; ++round) {
    std::string bytes = bytes_;
    for (uint32_t i = 0; i <= random() % 8; ++i) {
      bytes[header_bytes_ + random() % (bytes.size() - header_bytes_)] =
          static_cast<char>(random() % 256);
    }
    Try(bytes, config_, &outcome);
  }
  EXPECT_GT(outcome.loaded, 0);
}

TEST_P(RobustnessTest, DamagedConfigurationIsAnswered) {
  std::mt19937 random(19);
  Outcome outcome;
  for (int round = 0; round < 100; ++round) {
    std::string config = config_;
    const size_t at = random() % config.size();
    const bool digit = config[at] >= '0' && config[at] <= '9';
    config[at] = static_cast<char>(digit ? '0' + random() % 10 : random() % 256);
    Try(bytes_, config, &outcome);
  }
  EXPECT_GT(outcome.refused, 0);
  EXPECT_GT(outcome.loaded, 0);
}

TEST_P(RobustnessTest, TruncationIsAnInvalidArgument) {
  for (size_t size = 0; size < bytes_.size(); size += size < header_bytes_ + 16 ? 1 : 997) {
    const std::string bytes = bytes_.substr(0, size);
    ExpectStatus(
        Checkpoint::FromBytes(std::as_bytes(std::span(bytes)), nullptr, config_, "cut").status(),
        absl::StatusCode::kInvalidArgument, {"cut"});
  }
}

INSTANTIATE_TEST_SUITE_P(Dialects, RobustnessTest,
                         ::testing::Values("bnb_odd_elements", "bnb_rows_cross_blocks",
                                           "bnb_bias_outliers", "gptq_falcon3_1b_int4",
                                           "awq_llama_3_2_1b_awq", "fp8_exaone_fine_grained",
                                           "fp8_llama_dynamic_per_channel"),
                         [](const auto& golden) { return std::string(golden.param); });

}  // namespace
}  // namespace nibble::checkpoint
