// A device that is lost or hangs, from the callers' side and from the operator's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <thread>

#include "tests/integration/fixture.h"
#include "tests/support/faulty_module.h"

namespace nibble::testing {
namespace {

using grpc::StatusCode;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ::testing::HasSubstr;

constexpr char kModel[] = "gptq_falcon3_1b_int4";
constexpr int kExitDeviceLost = 3;
constexpr int kExitNotDrained = 4;

class DeviceFaultTest : public ::testing::Test {
 protected:
  DeviceFaultTest() : golden_(ReadGolden(kModel)) {}

  static std::vector<std::string> Flags(std::vector<std::string> more) {
    setenv("NIBBLE_CUDA_MODULE", NIBBLE_FAULTY_MODULE, 1);
    more.insert(more.end(),
                {"--backend=cuda", std::string("--model=m=") + GoldenRoot() + "/" + kModel});
    return more;
  }
  v1::MatmulRequest RequestOf(int64_t rows) const {
    return MatmulOf("m/model.layers.0.mlp.down_proj", Rows(golden_.x, rows));
  }

  const Golden golden_;
};

TEST_F(DeviceFaultTest, ALostDeviceIsUnavailableNotServingAndTheEnd) {
  ServerProcess server(Flags({"--drain-grace-ms=500"}));
  ASSERT_TRUE(server.WaitForLog("event=serving"));
  Stubs stubs(server);
  v1::MatmulResponse response;
  grpc::Status status = Matmul(stubs, RequestOf(5), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.info().device(), "cuda:0");

  grpc::ClientContext context;
  SetDeadline(context);
  auto watch = stubs.health->Watch(&context, HealthCheckRequest());
  HealthCheckResponse health;
  ASSERT_TRUE(watch->Read(&health));
  EXPECT_EQ(health.status(), HealthCheckResponse::SERVING);
  status = Matmul(stubs, RequestOf(kRowsThatLoseTheDevice), &response);
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("an illegal address"));
  ASSERT_TRUE(watch->Read(&health));
  EXPECT_EQ(health.status(), HealthCheckResponse::NOT_SERVING);
  // Within the grace period others are still answered, by the device's error.
  status = Matmul(stubs, RequestOf(5), &response);
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_EQ(server.ExitCode(), kExitDeviceLost);
  EXPECT_THAT(server.log(), HasSubstr("event=device_lost"));
}

TEST_F(DeviceFaultTest, ADeviceThatHangsDoesNotKeepTheProcess) {
  ServerProcess server(Flags({"--drain-timeout-ms=100"}));
  ASSERT_TRUE(server.WaitForLog("event=serving"));
  std::thread caller([&] {
    Stubs stubs(server);
    v1::MatmulResponse response;
    EXPECT_FALSE(Matmul(stubs, RequestOf(kRowsThatHang), &response).ok());
  });
  while (Sample(server.HttpGet("/metrics"), "nibble_batch_rows_count{op=\"matmul\"}") < 1) {
  }
  server.Signal(SIGTERM);
  EXPECT_EQ(server.ExitCode(), kExitNotDrained);
  caller.join();
  EXPECT_THAT(server.log(), HasSubstr("event=drain_hangs"));
}

}  // namespace
}  // namespace nibble::testing
