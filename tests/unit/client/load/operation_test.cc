// The messages that are put together and taken apart by hand, against the generated code.
#include "client/cpp/load/operation.h"

#include <gmock/gmock.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

namespace nibble::load {
namespace {

using ::testing::HasSubstr;

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// In pieces of a few bytes, as a transport may deliver it.
grpc::ByteBuffer InPieces(const std::string& bytes) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += 7) slices.emplace_back(bytes.substr(at, 7));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

class LoadOperationTest : public ::testing::Test {
 protected:
  LoadOperationTest() {
    options_.rows = RowCounts::Parse("1,3").value();
    options_.output_dtype = v1::DTYPE_F32;
  }
  Workload MakeWorkload() const {
    return Workload::Create(options_, {{"m/a", 5, 8, "cpu:0"}, {"m/b", 3, 4, "cpu:0"}}, 1 << 20)
        .value();
  }
  v1::MatmulResponse Reply(const Draw& draw, int64_t n) const {
    v1::MatmulResponse reply;
    reply.mutable_info()->set_kernel("cpu_gemv");
    reply.mutable_info()->set_device("cpu:0");
    reply.mutable_info()->set_batch_rows(9);
    reply.mutable_info()->set_queue_us(8);
    reply.mutable_info()->set_compute_us(7);
    reply.mutable_y()->set_dtype(v1::DTYPE_F32);
    reply.mutable_y()->add_shape(draw.rows);
    reply.mutable_y()->add_shape(n);
    reply.mutable_y()->set_data(std::string(static_cast<size_t>(draw.rows * n * 4), 'y'));
    return reply;
  }
  void Decode(const Operation& operation, const std::string& bytes) {
    exchange_.answer = {};
    grpc::ByteBuffer buffer = InPieces(bytes);
    operation.Decode(buffer, exchange_);
  }

  WorkloadOptions options_;
  Exchange exchange_{42};
};

TEST_F(LoadOperationTest, ARequestIsTheMessageOfTheGeneratedCode) {
  const Workload workload = MakeWorkload();
  const MatmulOperation operation(workload, false, nullptr);
  exchange_.draw = {.layer = 1, .rows = 3, .first_row = 15};
  const std::string bytes = BytesOf(operation.Encode(exchange_));
  v1::MatmulRequest request;
  ASSERT_TRUE(request.ParseFromString(bytes));
  EXPECT_EQ(request.weight(), "m/b");
  EXPECT_EQ(request.output_dtype(), v1::DTYPE_F32);
  EXPECT_EQ(request.request_id(), "");
  EXPECT_EQ(request.x().dtype(), v1::DTYPE_BF16);
  ASSERT_EQ(request.x().shape_size(), 2);
  EXPECT_EQ(request.x().shape(0), 3);
  EXPECT_EQ(request.x().shape(1), 4);
  // Rows 15, 0 and 1 of the distinct ones.
  const std::vector<float> x = client::FloatsFromTensor(request.x()).value();
  const std::vector<float>& distinct = workload.all_activations().at(4).distinct;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(x[i], distinct[15 * 4 + i]);
    EXPECT_EQ(x[4 + i], distinct[i]);
    EXPECT_EQ(x[8 + i], distinct[4 + i]);
  }
  EXPECT_EQ(exchange_.answer.request_bytes, static_cast<int64_t>(bytes.size()));
}

TEST_F(LoadOperationTest, ARequestOfAStreamCarriesTheNumber) {
  const Workload workload = MakeWorkload();
  const MatmulOperation operation(workload, true, nullptr);
  v1::MatmulRequest request;
  ASSERT_TRUE(request.ParseFromString(BytesOf(operation.Encode(exchange_))));
  EXPECT_EQ(request.request_id(), "42");
}

TEST_F(LoadOperationTest, TensorsInSharedMemoryTravelByTheirPlace) {
  const Workload workload = MakeWorkload();
  std::string memory(4096, '\0');
  SharedTensors shared;
  shared.region = "r";
  shared.memory = memory.data();
  shared.input_offset = {{8, 0}, {4, 512}};
  shared.output_offset = 1024;
  shared.output_stride = 64;
  const MatmulOperation operation(workload, false, &shared);
  exchange_.draw = {.layer = 0, .rows = 3, .first_row = 2, .check = true};
  v1::MatmulRequest request;
  ASSERT_TRUE(request.ParseFromString(BytesOf(operation.Encode(exchange_))));
  EXPECT_EQ(request.x().data(), "");
  EXPECT_EQ(request.x().shared().region(), "r");
  EXPECT_EQ(request.x().shared().offset(), 2u * 8 * 2);
  EXPECT_EQ(request.x().shared().length(), 3u * 8 * 2);
  EXPECT_EQ(request.y_memory().offset(), 1024u + 42 * 64);
  EXPECT_EQ(request.y_memory().length(), 3u * 5 * 4);

  v1::MatmulResponse reply = Reply(exchange_.draw, 5);
  reply.mutable_y()->clear_data();
  *reply.mutable_y()->mutable_shared() = request.y_memory();
  std::memset(memory.data() + 1024 + 42 * 64, 'z', 60);
  Decode(operation, reply.SerializeAsString());
  EXPECT_EQ(exchange_.answer.fault, "");
  EXPECT_EQ(exchange_.answer.y, std::string(60, 'z'));
}

TEST_F(LoadOperationTest, AReplyIsReadWithItsInfo) {
  const Workload workload = MakeWorkload();
  const MatmulOperation operation(workload, false, nullptr);
  exchange_.draw = {.layer = 0, .rows = 3, .check = true};
  const std::string bytes = Reply(exchange_.draw, 5).SerializeAsString();
  Decode(operation, bytes);
  const Answer& answer = exchange_.answer;
  EXPECT_TRUE(answer.ok());
  EXPECT_EQ(answer.fault, "");
  EXPECT_EQ(answer.kernel, "cpu_gemv");
  EXPECT_EQ(answer.device, "cpu:0");
  EXPECT_EQ(answer.batch_rows, 9);
  EXPECT_EQ(answer.queue_us, 8);
  EXPECT_EQ(answer.compute_us, 7);
  EXPECT_EQ(answer.y, std::string(60, 'y'));
  EXPECT_EQ(answer.reply_bytes, static_cast<int64_t>(bytes.size()));
  exchange_.draw.check = false;
  Decode(operation, bytes);
  EXPECT_EQ(exchange_.answer.y, "");
  EXPECT_EQ(exchange_.answer.fault, "");
}

TEST_F(LoadOperationTest, RepliesOfAStreamAreFoundByTheirNumber) {
  const Workload workload = MakeWorkload();
  const MatmulOperation operation(workload, true, nullptr);
  exchange_.draw = {.layer = 1, .rows = 1, .check = true};
  v1::MatmulStreamResponse reply;
  reply.set_request_id("42");
  *reply.mutable_result() = Reply(exchange_.draw, 3);
  grpc::ByteBuffer buffer = InPieces(reply.SerializeAsString());
  EXPECT_EQ(ExchangeNumberOf(buffer), 42);
  operation.Decode(buffer, exchange_);
  EXPECT_EQ(exchange_.answer.fault, "");
  EXPECT_EQ(exchange_.answer.y, std::string(12, 'y'));

  reply.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  reply.mutable_error()->set_message("queue full");
  Decode(operation, reply.SerializeAsString());
  EXPECT_EQ(exchange_.answer.code, "RESOURCE_EXHAUSTED");
  EXPECT_EQ(exchange_.answer.message, "queue full");

  for (const char* id : {"", "x", "4x"}) {
    reply.set_request_id(id);
    grpc::ByteBuffer other = InPieces(reply.SerializeAsString());
    EXPECT_EQ(ExchangeNumberOf(other), -1) << id;
  }
}

TEST_F(LoadOperationTest, NamesWhatIsWrongWithAReply) {
  const Workload workload = MakeWorkload();
  const MatmulOperation operation(workload, false, nullptr);
  exchange_.draw = {.layer = 0, .rows = 3};
  const v1::MatmulResponse good = Reply(exchange_.draw, 5);
  v1::MatmulResponse bad = good;
  bad.mutable_y()->set_shape(0, 2);
  Decode(operation, bad.SerializeAsString());
  EXPECT_EQ(exchange_.answer.fault, "y.shape: expected [3, 5], received [2, 5]");
  bad = good;
  bad.mutable_y()->mutable_data()->pop_back();
  Decode(operation, bad.SerializeAsString());
  EXPECT_EQ(exchange_.answer.fault, "y: expected 60 bytes, received 59");
  bad = good;
  bad.mutable_y()->set_dtype(v1::DTYPE_F16);
  Decode(operation, bad.SerializeAsString());
  EXPECT_THAT(exchange_.answer.fault, HasSubstr("y.dtype: expected F32"));
  Decode(operation, "");
  EXPECT_THAT(exchange_.answer.fault, HasSubstr("y.shape"));
}

TEST_F(LoadOperationTest, EveryTruncationOfAReplyIsAFault) {
  const Workload workload = MakeWorkload();
  const MatmulOperation operation(workload, false, nullptr);
  exchange_.draw = {.layer = 0, .rows = 3, .check = true};
  const std::string bytes = Reply(exchange_.draw, 5).SerializeAsString();
  for (size_t size = 0; size < bytes.size(); ++size) {
    Decode(operation, bytes.substr(0, size));
    EXPECT_NE(exchange_.answer.fault, "") << size;
  }
}

TEST_F(LoadOperationTest, EchoCarriesTheSameBytes) {
  const Workload workload = MakeWorkload();
  const EchoOperation operation(workload);
  exchange_.draw = {.layer = 0, .rows = 3, .first_row = 1};
  v1::EchoRequest request;
  ASSERT_TRUE(request.ParseFromString(BytesOf(operation.Encode(exchange_))));
  const std::span<const char> x = workload.InputOf(exchange_.draw);
  EXPECT_EQ(request.payload(), std::string(x.begin(), x.end()));
  EXPECT_EQ(request.response_bytes(), 60u);
  v1::EchoResponse reply;
  reply.set_payload(std::string(60, 'e'));
  Decode(operation, reply.SerializeAsString());
  EXPECT_EQ(exchange_.answer.fault, "");
  reply.set_payload("e");
  Decode(operation, reply.SerializeAsString());
  EXPECT_EQ(exchange_.answer.fault, "payload: expected 60 bytes, received 1");
}

TEST_F(LoadOperationTest, AWorkloadRefusesRequestsOverTheMessageLimit) {
  options_.rows = RowCounts::Parse("1000").value();
  const auto workload = Workload::Create(options_, {{"m/a", 5, 1024, "cpu:0"}}, 1 << 20);
  ASSERT_FALSE(workload.ok());
  EXPECT_THAT(
      std::string(workload.status().message().data(), workload.status().message().size()),
      HasSubstr("--rows: 1000 rows of 1024 BF16 values of m/a are over --max-message-bytes"));
}

TEST_F(LoadOperationTest, AWorkloadDrawsEveryLayerAndStaysWithinItsRows) {
  const Workload workload = MakeWorkload();
  Random random(1);
  std::array<int, 2> layers{};
  for (int i = 0; i < 1000; ++i) {
    const Draw draw = workload.Next(random);
    ++layers.at(draw.layer);
    EXPECT_EQ(workload.InputOf(draw).size(),
              static_cast<size_t>(draw.rows * workload.layers()[draw.layer].k * 2));
  }
  EXPECT_NEAR(layers[0], 500, 80);
}

}  // namespace
}  // namespace nibble::load
