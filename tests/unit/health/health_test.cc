#include "server/health/health_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>

namespace nibble::server {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

class HealthTest : public ::testing::Test {
 protected:
  HealthTest() : service_({"a.Service"}) {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = Health::NewStub(server_->InProcessChannel({}));
  }
  ~HealthTest() override {
    service_.EndWatches();
    server_->Shutdown();
  }

  grpc::Status Check(const std::string& service, HealthCheckResponse* response) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(service);
    return stub_->Check(&context, request, response);
  }
  HealthCheckResponse::ServingStatus StatusOf(const std::string& service) {
    HealthCheckResponse response;
    EXPECT_TRUE(Check(service, &response).ok());
    return response.status();
  }
  std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> Watch(grpc::ClientContext& context,
                                                                 const std::string& service) {
    HealthCheckRequest request;
    request.set_service(service);
    return stub_->Watch(&context, request);
  }

  HealthService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Health::Stub> stub_;
};

TEST_F(HealthTest, StartsNotServingAndFollows) {
  for (const char* service : {"", "a.Service"}) {
    EXPECT_EQ(StatusOf(service), HealthCheckResponse::NOT_SERVING);
  }
  service_.StartServing();
  for (const char* service : {"", "a.Service"}) {
    EXPECT_EQ(StatusOf(service), HealthCheckResponse::SERVING);
  }
  service_.StopServing();
  service_.StartServing();
  EXPECT_EQ(StatusOf(""), HealthCheckResponse::NOT_SERVING);
}

TEST_F(HealthTest, AnUnknownServiceIsNotFound) {
  HealthCheckResponse response;
  EXPECT_EQ(Check("b.Service", &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(HealthTest, AWatchSeesEveryChangeAndIsEnded) {
  grpc::ClientContext context;
  auto watch = Watch(context, "a.Service");
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  service_.StartServing();
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  service_.StopServing();
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  service_.EndWatches();
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_FALSE(watch->Finish().ok());
}

TEST_F(HealthTest, TheLastChangeIsSeenBeforeTheEnd) {
  service_.StartServing();
  grpc::ClientContext context;
  auto watch = Watch(context, "");
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  service_.StopServing();
  service_.EndWatches();
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  EXPECT_FALSE(watch->Read(&response));
}

TEST_F(HealthTest, AWatchOfAnUnknownServiceStaysOpen) {
  grpc::ClientContext context;
  auto watch = Watch(context, "b.Service");
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  service_.EndWatches();
  EXPECT_FALSE(watch->Read(&response));
}

TEST_F(HealthTest, AWatcherThatGoesAwayIsForgotten) {
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext context;
    auto watch = Watch(context, "");
    HealthCheckResponse response;
    ASSERT_TRUE(watch->Read(&response));
    context.TryCancel();
    while (watch->Read(&response)) {
    }
    EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  service_.StartServing();
  EXPECT_EQ(StatusOf(""), HealthCheckResponse::SERVING);
}

}  // namespace
}  // namespace nibble::server
