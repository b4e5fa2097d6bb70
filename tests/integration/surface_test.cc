// What operators see: metrics, reflection, the second address, tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>

#include "reflection.grpc.pb.h"
#include "tests/integration/fixture.h"

namespace nibble::testing {
namespace {

using grpc::StatusCode;
namespace reflection = grpc::reflection::v1alpha;

constexpr char kModel[] = "bnb_llama_1b_nf4";

// One of each RPC, so that every metric has been written to.
void CallEverything(Stubs& stubs) {
  ASSERT_TRUE(Load(stubs, kModel, kModel).ok());
  const Golden golden = ReadGolden(kModel);
  v1::MatmulResponse matmul;
  ASSERT_TRUE(Matmul(stubs, MatmulOf(golden.layer, golden.x), &matmul).ok());
  {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::DequantizeRequest request;
    request.set_weight(golden.layer);
    auto reader = stubs.linear->Dequantize(&context, request);
    v1::DequantizeResponse chunk;
    while (reader->Read(&chunk)) {
    }
    ASSERT_TRUE(reader->Finish().ok());
  }
  {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::NormQuantRequest request;
    *request.mutable_x() = RandomBF16(2, 64, 1);
    *request.mutable_gamma_inline() = RandomBF16(1, 64, 2);
    v1::NormQuantResponse response;
    ASSERT_TRUE(stubs.linear->NormQuant(&context, request, &response).ok());
  }
  {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::SiluMulQuantRequest request;
    *request.mutable_x() = RandomBF16(2, 64, 1);
    v1::SiluMulQuantResponse response;
    ASSERT_TRUE(stubs.linear->SiluMulQuant(&context, request, &response).ok());
  }
  v1::MatmulResponse refused;
  EXPECT_FALSE(Matmul(stubs, MatmulOf("no/such", golden.x), &refused).ok());
}

TEST(Surface, MetricsCountWhatWasServedAndPassPromtool) {
  ServerProcess server({"--weights-root=" + GoldenRoot()});
  Stubs stubs(server);
  CallEverything(stubs);
  const std::string text = server.HttpGet("/metrics");
  EXPECT_EQ(Sample(text, "nibble_inflight_requests"), 0);
  EXPECT_GT(Sample(text, "process_resident_memory_bytes"), 0);
  EXPECT_GT(Sample(text, "nibble_device_peak_bandwidth_bytes_per_second{device=\"cpu:0\"}"), 0);
  for (const char* op : {"matmul", "dequantize", "norm_quant", "silu_mul_quant"}) {
    EXPECT_GE(Sample(text, std::string("nibble_batch_rows_count{op=\"") + op + "\"}"), 1) << op;
    EXPECT_GE(Sample(text, std::string("nibble_queue_duration_seconds_count{op=\"") + op + "\"}"),
              1)
        << op;
  }
  const std::string file = ::testing::TempDir() + "/metrics-" + std::to_string(getpid());
  std::ofstream(file) << text;
  EXPECT_EQ(std::system(("promtool check metrics < " + file).c_str()), 0);
  std::remove(file.c_str());
}

TEST(Surface, ReflectionListsTheServicesOfEachPlane) {
  ServerProcess server({});
  Stubs stubs(server);
  for (const auto& [channel, service] : {std::pair{stubs.data_channel, "nibble.v1.Linear"},
                                         std::pair{stubs.control_channel, "nibble.v1.Weights"}}) {
    auto stub = reflection::ServerReflection::NewStub(channel);
    grpc::ClientContext context;
    SetDeadline(context);
    auto stream = stub->ServerReflectionInfo(&context);
    reflection::ServerReflectionRequest request;
    request.set_list_services("*");
    ASSERT_TRUE(stream->Write(request));
    reflection::ServerReflectionResponse response;
    ASSERT_TRUE(stream->Read(&response));
    std::set<std::string> names;
    for (const auto& listed : response.list_services_response().service()) {
      names.insert(listed.name());
    }
    EXPECT_TRUE(names.contains(service));
    EXPECT_TRUE(names.contains("grpc.health.v1.Health"));
    request.set_file_containing_symbol(service);
    ASSERT_TRUE(stream->Write(request));
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_GT(response.file_descriptor_response().file_descriptor_proto_size(), 0);
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
  }
}

TEST(Surface, EachPlaneServesItsOwnMethodsAlone) {
  ServerProcess server({});
  Stubs stubs(server);
  const auto weights_on_data = v1::Weights::NewStub(stubs.data_channel);
  grpc::ClientContext context;
  SetDeadline(context);
  v1::ListResponse list;
  EXPECT_EQ(weights_on_data->List(&context, {}, &list).error_code(), StatusCode::UNIMPLEMENTED);
  const auto linear_on_control = v1::Linear::NewStub(stubs.control_channel);
  grpc::ClientContext control_context;
  SetDeadline(control_context);
  v1::MatmulResponse response;
  EXPECT_EQ(
      linear_on_control->Matmul(&control_context, MatmulOf("m", RandomBF16(1, 8, 1)), &response)
          .error_code(),
      StatusCode::UNIMPLEMENTED);
}

class Tokens : public ::testing::Test {
 protected:
  Tokens() {
    const std::string base = ::testing::TempDir() + "/tokens-" + std::to_string(getpid());
    data_file_ = base + "-data";
    control_file_ = base + "-control";
    std::ofstream(data_file_) << "# callers\ndata-token-1\ndata-token-2\n";
    std::ofstream(control_file_) << "control-token\n";
  }
  ~Tokens() override {
    std::remove(data_file_.c_str());
    std::remove(control_file_.c_str());
  }
  std::string data_file_;
  std::string control_file_;
};

TEST_F(Tokens, AreAskedForOnEachPlaneApart) {
  ServerProcess server(
      {"--data-token-file=" + data_file_, "--control-token-file=" + control_file_});
  Stubs stubs(server);
  const auto list = [&](const std::string& authorization) {
    grpc::ClientContext context;
    SetDeadline(context);
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
    v1::ListResponse response;
    return stubs.weights->List(&context, {}, &response).error_code();
  };
  EXPECT_EQ(list(""), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(list("Basic abc"), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(list("Bearer wrong"), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(list("Bearer data-token-1"), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(list("Bearer control-token"), StatusCode::OK);
  const auto matmul = [&](const std::string& authorization) {
    grpc::ClientContext context;
    SetDeadline(context);
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
    v1::MatmulResponse response;
    return stubs.linear->Matmul(&context, MatmulOf("no/such", RandomBF16(1, 8, 1)), &response)
        .error_code();
  };
  EXPECT_EQ(matmul(""), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(matmul("Bearer control-token"), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(matmul("Bearer data-token-2"), StatusCode::NOT_FOUND);
  const auto stream = [&](const std::string& authorization) {
    grpc::ClientContext context;
    SetDeadline(context);
    context.AddMetadata("authorization", authorization);
    return stubs.linear->MatmulStream(&context)->Finish().error_code();
  };
  EXPECT_EQ(stream("Bearer wrong"), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Sample(server.HttpGet("/metrics"),
                   "nibble_rpc_requests_total{code=\"UNAUTHENTICATED\",method=\"MatmulStream\"}"),
            1);
  EXPECT_EQ(server.log().find("data-token"), std::string::npos);
}

}  // namespace
}  // namespace nibble::testing
