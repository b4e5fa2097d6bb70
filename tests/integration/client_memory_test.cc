// Shared memory through the C++ client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "nibble/client.h"
#include "tests/integration/fixture.h"

namespace nibble::testing {
namespace {

using client::Client;
using client::SharedMemory;
using ::testing::HasSubstr;

constexpr char kNF4[] = "bnb_llama_1b_nf4";
constexpr uint64_t kBytes = 65536;

class ClientMemory : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> flags) {
    flags.push_back(std::string("--model=m=") + GoldenRoot() + "/" + kNF4);
    flags.push_back("--drain-grace-ms=0");
    server_.emplace(flags);
    ASSERT_TRUE(server_->WaitForLog("event=serving"));
    client_ = *Client::Create({.address = server_->data_address()});
  }
  std::unique_ptr<SharedMemory> Attach() {
    auto memory = client_->AttachMemory(kBytes);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.ok() ? *std::move(memory) : nullptr;
  }

  std::optional<ServerProcess> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(ClientMemory, TensorsTravelByTheirPlace) {
  Start({"--allow-shared-memory"});
  const Golden golden = ReadGolden(kNF4);
  const v1::MatmulRequest plain = MatmulOf("m/model.layers.0.mlp.down_proj", golden.x);
  const auto expected = client_->Matmul(plain);
  ASSERT_TRUE(expected.ok()) << expected.status();
  const std::unique_ptr<SharedMemory> memory = Attach();
  ASSERT_NE(memory, nullptr);
  ASSERT_GE(memory->bytes().size(), kBytes);

  const std::string& x = plain.x().data();
  std::memcpy(memory->bytes().data() + 64, x.data(), x.size());
  v1::MatmulRequest request = plain;
  const std::vector<int64_t> shape(plain.x().shape().begin(), plain.x().shape().end());
  *request.mutable_x() = *memory->TensorAt(64, shape, plain.x().dtype());
  EXPECT_TRUE(request.x().data().empty());
  *request.mutable_y_memory() = *memory->Slice(32768, 32768);
  const auto reply = client_->Matmul(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(reply->y().data().empty());
  const auto y = memory->BytesOf(reply->y());
  ASSERT_TRUE(y.ok()) << y.status();
  ASSERT_EQ(y->size(), expected->y().data().size());
  EXPECT_EQ(std::memcmp(y->data(), expected->y().data().data(), y->size()), 0);
  // It does not need the client that attached it.
  client_ = *Client::Create({.address = server_->data_address()});
  EXPECT_TRUE(client_->Matmul(request).ok());
}

TEST_F(ClientMemory, WhatIsNotInItIsRefusedHere) {
  Start({"--allow-shared-memory"});
  const std::unique_ptr<SharedMemory> memory = Attach();
  ASSERT_NE(memory, nullptr);
  const uint64_t size = memory->bytes().size();
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  EXPECT_TRUE(memory->Slice(size, 0).ok());
  for (const auto& [offset, length] :
       {std::pair(size, uint64_t{1}), std::pair(uint64_t{1}, kHuge), std::pair(kHuge, kHuge)}) {
    EXPECT_EQ(memory->Slice(offset, length).status().code(), absl::StatusCode::kInvalidArgument);
  }
  const auto rows = static_cast<int64_t>(size / 64);
  EXPECT_TRUE(memory->TensorAt(0, {rows, 16}, v1::DTYPE_F32).ok());
  EXPECT_FALSE(memory->TensorAt(1, {rows, 16}, v1::DTYPE_F32).ok());
  EXPECT_FALSE(memory->TensorAt(0, {rows, -1}, v1::DTYPE_F32).ok());
  EXPECT_FALSE(memory->TensorAt(0, {int64_t{1} << 62, 1}, v1::DTYPE_F32).ok());
  EXPECT_FALSE(memory->TensorAt(0, {1}, v1::DTYPE_UNSPECIFIED).ok());
  v1::Tensor tensor;
  EXPECT_FALSE(memory->BytesOf(tensor).ok());
  tensor = *memory->TensorAt(0, {1}, v1::DTYPE_F32);
  tensor.mutable_shared()->set_offset(size);
  EXPECT_FALSE(memory->BytesOf(tensor).ok());
  tensor.mutable_shared()->set_region("another");
  EXPECT_THAT(std::string(memory->BytesOf(tensor).status().message()), HasSubstr("in another"));
}

TEST_F(ClientMemory, TheServersRefusalsArriveUnchanged) {
  Start({});
  const auto refused = client_->AttachMemory(kBytes);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--allow-shared-memory"));
}

TEST_F(ClientMemory, ServerGivesItBackWhenItGoes) {
  Start({"--allow-shared-memory", "--max-shared-memory-bytes=64KiB"});
  std::unique_ptr<SharedMemory> memory = Attach();
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(client_->AttachMemory(1).status().code(), absl::StatusCode::kResourceExhausted);
  memory.reset();
  ASSERT_TRUE(server_->WaitForLog("event=memory_detached"));
  EXPECT_NE(Attach(), nullptr);
}

}  // namespace
}  // namespace nibble::testing
