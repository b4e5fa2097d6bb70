// The ways that bytes travel: sockets of both kinds, messages as the transport cuts them, Echo.
#include <gmock/gmock.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "tests/integration/fixture.h"

namespace nibble::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

constexpr char kNF4[] = "bnb_llama_1b_nf4";

// A directory for sockets, gone with the test.
class Directory {
 public:
  Directory() {
    char name[] = "/tmp/nibble-transport-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::unique_ptr<v1::Linear::Stub> LinearAt(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return v1::Linear::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

grpc::Status Echo(v1::Linear::Stub& linear, const std::string& payload, uint64_t response_bytes,
                  v1::EchoResponse* response) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::EchoRequest request;
  request.set_payload(payload);
  request.set_response_bytes(response_bytes);
  return linear.Echo(&context, request, response);
}

TEST(Sockets, TcpAndUnixAreServedAtOnce) {
  const Directory directory;
  const std::string unix_address = "unix:" + directory.File("socket");
  ServerProcess server({"--enable-echo", "--listen=" + unix_address});
  for (const std::string& address : {server.data_address(), unix_address}) {
    const auto linear = LinearAt(address);
    v1::EchoResponse response;
    const grpc::Status status = Echo(*linear, "x", 5, &response);
    EXPECT_TRUE(status.ok()) << address << ": " << status.error_message();
    EXPECT_EQ(response.payload().size(), 5u);
  }
  server.Signal(SIGTERM);
  EXPECT_EQ(server.ExitCode(), 0);
  EXPECT_FALSE(std::filesystem::exists(directory.File("socket")));
}

TEST(Sockets, TheSocketOfADeadServerIsReplacedAndThatOfALiveOneIsNot) {
  const Directory directory;
  const std::string flag = "--listen=unix:" + directory.File("socket");
  {
    ServerProcess killed({flag});
    killed.Signal(SIGKILL);
    killed.ExitCode();
  }
  ASSERT_TRUE(std::filesystem::exists(directory.File("socket")));
  ServerProcess server({"--enable-echo", flag});
  ServerProcess second({flag});
  EXPECT_EQ(second.ExitCode(), 1);
  EXPECT_THAT(second.log(), HasSubstr("another process listens"));
  v1::EchoResponse response;
  EXPECT_TRUE(Echo(*LinearAt("unix:" + directory.File("socket")), "", 1, &response).ok());
}

TEST(Sockets, OtherFilesAreLeftAlone) {
  const Directory directory;
  std::ofstream(directory.File("file")) << "precious";
  ServerProcess server({"--listen=unix:" + directory.File("file")});
  EXPECT_EQ(server.ExitCode(), 1);
  EXPECT_THAT(server.log(), HasSubstr("something else"));
  EXPECT_EQ(std::filesystem::file_size(directory.File("file")), 8u);
}

TEST(EchoMethod, IsOffUnlessAskedFor) {
  ServerProcess server({});
  v1::EchoResponse response;
  const grpc::Status status = Echo(*LinearAt(server.data_address()), "x", 1, &response);
  EXPECT_EQ(status.error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--enable-echo"));
}

TEST(EchoMethod, AnswersAsManyBytesAsItIsAskedFor) {
  ServerProcess server({"--enable-echo", "--max-message-bytes=16MiB"});
  const auto linear = LinearAt(server.data_address());
  // The stock limit of a client's messages holds for what it receives.
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{8192}, uint64_t{4000000}}) {
    v1::EchoResponse response;
    const grpc::Status status = Echo(*linear, std::string(bytes, 'x'), bytes, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.payload().size(), bytes);
  }
  v1::EchoResponse response;
  const grpc::Status status = Echo(*linear, "x", UINT64_MAX, &response);
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--max-message-bytes"));
}

class Messages : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new ServerProcess({"--weights-root=" + GoldenRoot()});
    stubs_ = new Stubs(*server_);
    ASSERT_TRUE(Load(*stubs_, kNF4, kNF4).ok());
    golden_ = new Golden(ReadGolden(kNF4));
  }
  static void TearDownTestSuite() {
    delete golden_;
    delete stubs_;
    delete server_;
  }

  static v1::MatmulRequest Good() { return MatmulOf(golden_->layer, golden_->x); }
  static v1::MatmulResponse Expected() {
    v1::MatmulResponse response;
    const grpc::Status status = Matmul(*stubs_, Good(), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  // Sends bytes that need not be a message.
  static grpc::Status MatmulBytes(const std::string& wire, v1::MatmulResponse* response) {
    grpc::ClientContext context;
    SetDeadline(context);
    const grpc::internal::RpcMethod method(
        "/nibble.v1.Linear/Matmul", grpc::internal::RpcMethod::NORMAL_RPC, stubs_->data_channel);
    const grpc::Slice slice(wire);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer reply;
    const grpc::Status status = grpc::internal::BlockingUnaryCall(
        stubs_->data_channel.get(), method, &context, request, &reply);
    if (!status.ok()) return status;
    grpc::Slice whole;
    EXPECT_TRUE(reply.DumpToSingleSlice(&whole).ok());
    EXPECT_TRUE(response->ParseFromArray(whole.begin(), static_cast<int>(whole.size())));
    return status;
  }

  static ServerProcess* server_;
  static Stubs* stubs_;
  static Golden* golden_;
};

ServerProcess* Messages::server_ = nullptr;
Stubs* Messages::stubs_ = nullptr;
Golden* Messages::golden_ = nullptr;

TEST_F(Messages, BytesThatAreNoMessageAreRefused) {
  for (const std::string& wire :
       {std::string("\xff\xff\xff"), Good().SerializeAsString().substr(0, 400),
        std::string("\x7a\xff\xff\xff\xff\x07"), std::string("\x0a\x02\xff\xfe")}) {
    v1::MatmulResponse response;
    const grpc::Status status = MatmulBytes(wire, &response);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("nibble.v1.MatmulRequest"));
  }
  v1::MatmulResponse response;
  EXPECT_EQ(MatmulBytes("", &response).error_code(), StatusCode::NOT_FOUND);
  Expected();
}

TEST_F(Messages, EveryEncodingOfARequestIsUnderstood) {
  const std::string expected = Expected().y().data();
  const v1::MatmulRequest good = Good();
  v1::MatmulRequest head = good;
  head.clear_x();
  v1::MatmulRequest shape;
  *shape.mutable_x() = good.x();
  shape.mutable_x()->clear_data();
  v1::MatmulRequest data;
  data.mutable_x()->set_data(good.x().data());
  v1::MatmulRequest stale;
  stale.set_weight("no/such");
  stale.mutable_x()->set_data("stale");
  const std::string group = "\xa3\x06\xa4\x06";  // an empty group, field 100
  for (const std::string& wire :
       {data.SerializeAsString() + shape.SerializeAsString() + head.SerializeAsString(),
        stale.SerializeAsString() + good.SerializeAsString(), good.SerializeAsString() + group}) {
    v1::MatmulResponse response;
    const grpc::Status status = MatmulBytes(wire, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.y().data(), expected);
  }
}

TEST_F(Messages, AStreamEndsAtBytesThatAreNoRequest) {
  grpc::ClientContext context;
  SetDeadline(context);
  const grpc::internal::RpcMethod method("/nibble.v1.Linear/MatmulStream",
                                         grpc::internal::RpcMethod::BIDI_STREAMING,
                                         stubs_->data_channel);
  const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, v1::MatmulStreamResponse>>
      stream(grpc::internal::ClientReaderWriterFactory<
             grpc::ByteBuffer, v1::MatmulStreamResponse>::Create(stubs_->data_channel.get(), method,
                                                                 &context));
  for (const std::string& wire : {Good().SerializeAsString(), std::string("\xff")}) {
    const grpc::Slice slice(wire);
    ASSERT_TRUE(stream->Write(grpc::ByteBuffer(&slice, 1)));
  }
  v1::MatmulStreamResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.result().y().shape(0), 5);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST(UploadBudget, UploadsUnderWayAreBoundedTogether) {
  ServerProcess server({"--max-upload-bytes=1MiB", "--max-concurrent-upload-bytes=1MiB"});
  Stubs stubs(server);
  v1::UploadRequest header;
  header.mutable_header()->set_name("m");
  header.mutable_header()->set_total_bytes(600 << 10);
  header.mutable_header()->mutable_checkpoint();
  const auto second = [&] {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::UploadResponse response;
    auto writer = stubs.weights->Upload(&context, &response);
    writer->Write(header);
    writer->WritesDone();
    return writer->Finish();
  };
  // Of two at once the one that announces itself first is served and the other refused: again until
  // that was `first`.
  for (grpc::Status status; status.error_code() != StatusCode::RESOURCE_EXHAUSTED;) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::UploadResponse response;
    auto first = stubs.weights->Upload(&context, &response);
    ASSERT_TRUE(first->Write(header));
    status = second();
    if (status.error_code() == StatusCode::RESOURCE_EXHAUSTED) {
      EXPECT_THAT(status.error_message(), HasSubstr("--max-concurrent-upload-bytes"));
    } else {
      ASSERT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << status.error_message();
    }
    first->WritesDone();
    const grpc::Status ended = first->Finish();
    if (status.error_code() == StatusCode::RESOURCE_EXHAUSTED) {
      EXPECT_EQ(ended.error_code(), StatusCode::INVALID_ARGUMENT) << ended.error_message();
    }
  }
  // Given back: what is wrong now is only that no bytes follow.
  const grpc::Status status = second();
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << status.error_message();
}

}  // namespace
}  // namespace nibble::testing
