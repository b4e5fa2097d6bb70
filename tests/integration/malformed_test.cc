// Messages that are none, that are damaged, or are as large as they may be.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "tests/integration/faults_fixture.h"
#include "tests/support/raw_connection.h"

namespace nibble::testing {
namespace {

using grpc::StatusCode;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Sends messages of any bytes to any method.
class Messages : public FaultsTest {
 protected:
  static constexpr char kStreamPath[] = "/nibble.v1.Linear/MatmulStream";
  static constexpr char kUploadPath[] = "/nibble.v1.Weights/Upload";

  grpc::Status Call(const std::string& path, const std::vector<std::string>& messages) {
    const auto& channel =
        path.find("Weights") == std::string::npos ? stubs().data_channel : stubs().control_channel;
    grpc::GenericStub stub(channel);
    grpc::CompletionQueue queue;
    grpc::ClientContext context;
    SetDeadline(context);
    const auto call = stub.PrepareCall(&context, path, &queue);
    const auto next = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    next();
    for (const std::string& message : messages) {
      const grpc::Slice slice(message);
      call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
      if (!next()) break;
    }
    call->WritesDone(nullptr);
    next();
    grpc::ByteBuffer reply;
    do {
      call->Read(&reply, nullptr);
    } while (next());
    grpc::Status status;
    call->Finish(&status, nullptr);
    next();
    return status;
  }

  // The method's name with a message that is well formed.
  std::vector<std::pair<std::string, std::string>> Methods() {
    v1::NormQuantRequest norm;
    *norm.mutable_x() = RandomBF16(2, 64, 3);
    *norm.mutable_gamma_inline() = RandomBF16(1, 64, 4);
    v1::DequantizeRequest dequantize;
    dequantize.set_weight(layer());
    dequantize.set_row_count(3);
    v1::LoadRequest load;
    load.set_name("l");
    load.set_path("bnb_odd_elements");
    v1::UploadRequest upload;
    upload.mutable_header()->set_name("u");
    upload.mutable_header()->set_total_bytes(64);
    upload.mutable_header()->mutable_checkpoint()->set_config_json("{}");
    return {{kMatmulPath, good().SerializeAsString()},
            {kStreamPath, good().SerializeAsString()},
            {"/nibble.v1.Linear/NormQuant", norm.SerializeAsString()},
            {"/nibble.v1.Linear/Dequantize", dequantize.SerializeAsString()},
            {"/nibble.v1.Weights/Load", load.SerializeAsString()},
            {kUploadPath, upload.SerializeAsString()}};
  }
};

TEST_F(Messages, BytesThatAreNoMessageAreRefused) {
  Start();
  // Groups within groups, and messages within the x of Matmul.
  const std::string groups(20000, '\x0b');
  std::string nested;
  for (int i = 0; i < 2000 && nested.size() < 100000; ++i) {
    std::string outer = "\x7a";
    for (size_t length = nested.size();; length >>= 7) {
      outer.push_back(static_cast<char>((length & 127) | (length > 127 ? 128 : 0)));
      if (length <= 127) break;
    }
    nested = outer + nested;
  }
  const std::vector<std::string> broken = {
      "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",  // a number without end
      std::string("\x0a\xff\xff\xff\xff\x07", 6),      // 2 GiB of a string that is not there
      std::string("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 10),
      std::string("\x7a\x80\x80\x80\x80\x08x", 7),
      std::string("\x0a\x02\xff\xfe", 4),  // not UTF-8
      std::string("\x00\x01", 2),          // field 0
      std::string("\x0e\x01", 2),          // wire type 6
      groups,
      std::string("\x0b\x0c\x0c", 3),  // a group that ends twice
  };
  for (const auto& [path, wire] : Methods()) {
    SCOPED_TRACE(path);
    for (const std::string& bytes : broken) {
      const grpc::Status status = Call(path, {bytes});
      EXPECT_THAT(status.error_code(), AnyOf(StatusCode::INVALID_ARGUMENT, StatusCode::INTERNAL,
                                             StatusCode::UNIMPLEMENTED))
          << status.error_message();
    }
    // A string where a number is meant, and the other way round: fields that are not known.
    for (const std::string& bytes : {nested, std::string("\x08\x01\x7d\x01\x02\x03\x04", 7)}) {
      EXPECT_FALSE(Call(path, {bytes}).ok() && path != kStreamPath);
    }
    EXPECT_FALSE(Call(path, {wire.substr(0, wire.size() - 1)}).ok() && path != kStreamPath);
  }
  ExpectWell();
}

TEST_F(Messages, DamagedOnesReachNobodyElse) {
  Start();
  std::mt19937 generator(20240229);
  constexpr int kMutations = 60;
  for (const auto& [path, wire] : Methods()) {
    SCOPED_TRACE(path);
    for (int i = 0; i < kMutations; ++i) {
      std::string damaged = wire;
      // The start holds the fields; most of the rest is data.
      const size_t reach = i % 2 == 0 ? std::min<size_t>(damaged.size(), 64) : damaged.size();
      for (unsigned flips = 1 + generator() % 4; flips > 0; --flips) {
        damaged[generator() % reach] = static_cast<char>(generator());
      }
      if (i % 5 == 0) damaged.resize(generator() % damaged.size());
      if (i % 7 == 0) damaged.insert(generator() % (damaged.size() + 1), wire.substr(0, 9));
      const grpc::Status status = Call(path, {damaged});
      EXPECT_THAT(status.error_code(),
                  ::testing::Not(AnyOf(StatusCode::UNAVAILABLE, StatusCode::DEADLINE_EXCEEDED,
                                       StatusCode::UNKNOWN)))
          << i << ": " << status.error_message();
    }
  }
  ExpectWell();
}

TEST_F(Messages, TheLimitIsExact) {
  constexpr size_t kLimit = 65536;
  Start({"--max-message-bytes=64KiB"});
  // A field that is not known fills the message up.
  const auto filled = [this](size_t bytes) {
    std::string wire = good().SerializeAsString();
    const size_t fill = bytes - wire.size() - 5;
    EXPECT_GT(fill, 128u * 128u);
    wire += "\xa2\x06";  // field 100, a string
    wire.push_back(static_cast<char>((fill & 127) | 128));
    wire.push_back(static_cast<char>((fill >> 7 & 127) | 128));
    wire.push_back(static_cast<char>(fill >> 14));
    wire += std::string(fill, 'x');
    EXPECT_EQ(wire.size(), bytes);
    return wire;
  };
  for (const char* path : {kMatmulPath, kStreamPath}) {
    EXPECT_TRUE(Call(path, {filled(kLimit)}).ok());
    const grpc::Status over = Call(path, {filled(kLimit + 1)});
    EXPECT_EQ(over.error_code(), StatusCode::RESOURCE_EXHAUSTED) << path;
    EXPECT_THAT(over.error_message(), HasSubstr("65536"));
  }
  v1::UploadRequest chunk;
  chunk.set_chunk(std::string(kLimit, 'x'));
  EXPECT_EQ(Call(kUploadPath, {chunk.SerializeAsString()}).error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  ExpectWell();
}

TEST_F(Messages, LengthsThatLieEndTheirCallAlone) {
  using namespace http2;
  Start();
  const std::string wire = good().SerializeAsString();
  const std::string open = Hello() + Frame(kHeaders, kEndHeaders, 1, RequestFields(kMatmulPath));
  for (const std::string& data :
       {Message(wire, 0xFFFFFFFFu), Message(wire, 0x7FFFFFFFu), Message(wire, 3),
        Message(wire) + "tail", std::string("\x01") + Message(wire).substr(1),
        std::string("\xff") + Message(wire).substr(1), std::string("\0\0", 2), std::string()}) {
    RawConnection connection(server().data_address());
    ASSERT_TRUE(connection.Send(open + Frame(kData, kEndStream, 1, data)));
    connection.HalfClose();
    connection.ReceiveAll();
  }
  ExpectWell();
}

}  // namespace
}  // namespace nibble::testing
