// The splitter against protobuf: whatever it accepts must mean what protobuf reads.
#include "server/service/wire_split.h"

#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>

#include "nibble/v1/linear.pb.h"

namespace nibble::server {
namespace {

constexpr std::array<uint32_t, 2> kTensors{v1::MatmulRequest::kXFieldNumber,
                                           v1::MatmulRequest::kXScalesFieldNumber};
constexpr std::array<uint32_t, 1> kPayload{v1::EchoRequest::kPayloadFieldNumber};

using Chunks = std::vector<std::span<const std::byte>>;

// `wire` cut at random places, some of the pieces empty.
Chunks Cut(const std::string& wire, std::mt19937& random) {
  Chunks chunks;
  const auto bytes = std::as_bytes(std::span(wire));
  const size_t most = random() % 2 == 0 ? 3 : 64;
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t size = std::min<size_t>(random() % (most + 1), bytes.size() - begin);
    chunks.push_back(bytes.subspan(begin, size));
    begin += size;
  }
  return chunks;
}

std::optional<SplitMessage> Split(const std::string& wire, const SplitLayout& layout) {
  const Chunks whole = {std::as_bytes(std::span(wire))};
  return SplitTensors(whole, layout);
}

std::string Text(const ByteSpans& spans) {
  std::string text(spans.size(), '\0');
  spans.CopyTo(0, text.size(), reinterpret_cast<std::byte*>(text.data()));
  return text;
}

// The split message put together again.
bool Join(const SplitMessage& split, v1::MatmulRequest* joined) {
  if (!joined->ParseFromString(split.fields)) return false;
  EXPECT_TRUE(joined->x().data().empty());
  EXPECT_TRUE(joined->x_scales().data().empty());
  if (!split.data[0].empty()) joined->mutable_x()->set_data(Text(split.data[0]));
  if (!split.data[1].empty()) joined->mutable_x_scales()->set_data(Text(split.data[1]));
  return true;
}

// Counts the messages that were split; the others are protobuf's affair.
int ExpectSameAsProtobuf(const std::string& wire, std::mt19937& random) {
  const auto split = SplitTensors(Cut(wire, random), {.tensors = kTensors});
  if (!split.has_value()) return 0;
  v1::MatmulRequest expected;
  v1::MatmulRequest joined;
  const bool parses = expected.ParseFromString(wire);
  EXPECT_EQ(Join(*split, &joined), parses);
  if (parses) {
    EXPECT_EQ(joined.SerializeAsString(), expected.SerializeAsString());
  }
  return 1;
}

void AppendTag(uint32_t field, uint32_t type, std::string* out) {
  for (uint32_t tag = field << 3 | type;; tag >>= 7) {
    out->push_back(static_cast<char>((tag & 0x7F) | (tag >= 0x80 ? 0x80 : 0)));
    if (tag < 0x80) return;
  }
}

std::string RandomBytes(std::mt19937& random, size_t most) {
  std::string bytes(random() % (most + 1), '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// A field that neither a request nor a tensor has, well-formed.
void AppendUnknown(std::mt19937& random, std::string* out) {
  const auto field = static_cast<uint32_t>(random() % 40 + 16);
  switch (random() % 4) {
    case 0:
      AppendTag(field, 0, out);
      out->push_back(static_cast<char>(0x80 | random() % 128));
      out->push_back(static_cast<char>(random() % 128));
      break;
    case 1:
      AppendTag(field, 1, out);
      out->append("12345678");
      break;
    case 2:
      AppendTag(field, 5, out);
      out->append("1234");
      break;
    default: {
      const std::string bytes = RandomBytes(random, 20);
      AppendLengthPrefix(field, bytes.size(), out);
      out->append(bytes);
    }
  }
}

std::string RandomTensor(std::mt19937& random) {
  std::string wire;
  for (int parts = random() % 4; parts >= 0; --parts) {
    v1::Tensor tensor;
    if (random() % 2 == 0) tensor.set_dtype(static_cast<v1::DType>(random() % 7));
    for (int i = random() % 3; i > 0; --i) tensor.add_shape(static_cast<int64_t>(random()));
    if (random() % 2 == 0) tensor.set_data(RandomBytes(random, 300));
    if (random() % 4 == 0) tensor.mutable_shared()->set_offset(random());
    wire += tensor.SerializeAsString();
    if (random() % 8 == 0) AppendLengthPrefix(kTensorDataField, 0, &wire);
    if (random() % 4 == 0) AppendUnknown(random, &wire);
  }
  return wire;
}

std::string RandomRequest(std::mt19937& random) {
  std::string wire;
  for (int parts = random() % 6; parts >= 0; --parts) {
    v1::MatmulRequest request;
    if (random() % 2 == 0) request.set_weight("layer/" + std::to_string(random() % 100));
    if (random() % 2 == 0) request.set_request_id("id");
    if (random() % 3 == 0) request.set_output_dtype(v1::DTYPE_F32);
    if (random() % 3 == 0) request.mutable_y_memory()->set_length(random());
    wire += request.SerializeAsString();
    if (random() % 2 == 0) {
      const std::string tensor = RandomTensor(random);
      AppendLengthPrefix(kTensors[random() % 2], tensor.size(), &wire);
      wire += tensor;
    }
    if (random() % 4 == 0) AppendUnknown(random, &wire);
  }
  return wire;
}

void Mutate(std::mt19937& random, std::string* wire) {
  for (int changes = random() % 3; changes >= 0 && !wire->empty(); --changes) {
    const size_t at = random() % wire->size();
    switch (random() % 4) {
      case 0:
        (*wire)[at] = static_cast<char>(random());
        break;
      case 1:
        wire->erase(at, random() % 4 + 1);
        break;
      case 2:
        wire->insert(at, RandomBytes(random, 4));
        break;
      default:
        wire->resize(at);
    }
  }
}

TEST(WireSplit, AgreesWithProtobufOnWellFormedMessages) {
  std::mt19937 random(1);
  int split = 0;
  for (int i = 0; i < 20000; ++i) split += ExpectSameAsProtobuf(RandomRequest(random), random);
  EXPECT_EQ(split, 20000);
}

TEST(WireSplit, AgreesWithProtobufOnDamagedMessages) {
  const google::protobuf::LogSilencer silencer;
  std::mt19937 random(2);
  int split = 0;
  for (int i = 0; i < 60000; ++i) {
    std::string wire = RandomRequest(random);
    Mutate(random, &wire);
    split += ExpectSameAsProtobuf(wire, random);
  }
  // Neither all nor none: both ways are exercised.
  EXPECT_GT(split, 10000);
  EXPECT_LT(split, 55000);
}

TEST(WireSplit, AgreesWithProtobufOnNoise) {
  const google::protobuf::LogSilencer silencer;
  std::mt19937 random(3);
  for (int i = 0; i < 60000; ++i) ExpectSameAsProtobuf(RandomBytes(random, 12), random);
}

TEST(WireSplit, DataStaysWhereItIs) {
  v1::MatmulRequest request;
  request.set_weight("w");
  request.mutable_x()->set_data(std::string(1000, 'x'));
  const std::string wire = request.SerializeAsString();
  const auto split = Split(wire, {.tensors = kTensors});
  ASSERT_TRUE(split.has_value());
  EXPECT_EQ(split->data[0].size(), 1000u);
  EXPECT_EQ(split->data[0].span_count(), 1u);
  EXPECT_LT(split->fields.size(), 20u);
}

TEST(WireSplit, TheLastDataCountsAcrossTheTensorsParts) {
  v1::MatmulRequest first;
  first.mutable_x()->set_data("first");
  v1::MatmulRequest second;
  second.mutable_x()->set_data("second");
  v1::MatmulRequest shape_alone;
  shape_alone.mutable_x()->add_shape(6);
  const std::string wire =
      first.SerializeAsString() + second.SerializeAsString() + shape_alone.SerializeAsString();
  const auto split = Split(wire, {.tensors = kTensors});
  ASSERT_TRUE(split.has_value());
  EXPECT_EQ(Text(split->data[0]), "second");
}

TEST(WireSplit, BytesFieldsAreTakenOut) {
  v1::EchoRequest request;
  request.set_payload("payload");
  request.set_response_bytes(9);
  const std::string wire = request.SerializeAsString();
  const auto split = Split(wire, {.bytes = kPayload});
  ASSERT_TRUE(split.has_value());
  EXPECT_EQ(Text(split->data[0]), "payload");
  v1::EchoRequest fields;
  ASSERT_TRUE(fields.ParseFromString(split->fields));
  EXPECT_EQ(fields.response_bytes(), 9u);
  EXPECT_TRUE(fields.payload().empty());
}

TEST(WireSplit, LengthsPastTheEndAreRefused) {
  for (const uint64_t length : {uint64_t{6}, uint64_t{1} << 30, uint64_t{1} << 31}) {
    std::string wire;
    AppendLengthPrefix(v1::MatmulRequest::kXFieldNumber, length, &wire);
    EXPECT_FALSE(Split(wire + "12345", {.tensors = kTensors}).has_value());
    std::string tensor;
    AppendLengthPrefix(kTensorDataField, length, &tensor);
    tensor += "12345";
    std::string outer;
    AppendLengthPrefix(v1::MatmulRequest::kXFieldNumber, tensor.size(), &outer);
    // What follows the tensor does not make up for what the tensor lacks.
    EXPECT_FALSE(Split(outer + tensor + "678901234567890", {.tensors = kTensors}).has_value());
  }
}

TEST(WireSplit, ManySmallFieldsAreLeftToProtobuf) {
  std::string wire;
  while (wire.size() <= kMaxSmallFieldBytes + 16) wire += "\x98\x06\x01";
  EXPECT_FALSE(Split(wire, {.tensors = kTensors}).has_value());
}

TEST(WireSplit, PrefixesAreAsLongAsTheySay) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{127}, uint64_t{128}, uint64_t{1} << 28}) {
    for (const uint32_t field : {1u, 15u, 16u}) {
      std::string prefix;
      AppendLengthPrefix(field, bytes, &prefix);
      EXPECT_EQ(prefix.size(), LengthPrefixBytes(field, bytes));
    }
  }
}

}  // namespace
}  // namespace nibble::server
