// A device that is lost or hangs, from the callers' side and from the operator's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/format.h"
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
    more.push_back("--backend=cuda");
    more.push_back("--contended-batch-us=0");  // a request is to run whole: its rows say what fails
    for (const char* name : {"m", "other"}) {
      more.push_back(fmt::format("--model={}={}/{}", name, GoldenRoot(), kModel));
    }
    return more;
  }
  v1::MatmulRequest RequestOf(int64_t rows, const std::string& model = "m") const {
    return MatmulOf(model + "/model.layers.0.mlp.down_proj", Rows(golden_.x, rows));
  }
  // Callers of model "other", who go on until one of their calls fails or `enough`.
  class Callers {
   public:
    Callers(const ServerProcess& server, const v1::MatmulRequest& request) {
      for (int i = 0; i < kCallers; ++i) {
        threads_.emplace_back([this, &server, request] {
          Stubs stubs(server);
          v1::MatmulResponse response;
          while (!enough_) {
            const grpc::Status status = Matmul(stubs, request, &response);
            ++answers_;
            std::lock_guard lock(mutex_);
            if (!status.ok()) failures_.push_back(status);
            if (!status.ok()) return;
          }
        });
      }
    }
    ~Callers() { End(); }
    // Waits for so many answers more.
    void WaitForAnswers(int64_t more) const {
      for (const int64_t end = answers_ + more; answers_ < end;) std::this_thread::yield();
    }
    std::vector<grpc::Status> End(bool enough = true) {
      if (enough) enough_ = true;
      for (std::thread& thread : std::exchange(threads_, {})) thread.join();
      return failures_;
    }
    static constexpr int kCallers = 4;

   private:
    std::atomic<bool> enough_{false};
    std::atomic<int64_t> answers_{0};
    std::mutex mutex_;
    std::vector<grpc::Status> failures_;
    std::vector<std::thread> threads_;
  };

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

TEST_F(DeviceFaultTest, ABatchThatFailsIsTheAffairOfItsCallersAlone) {
  ServerProcess server(Flags({"--drain-grace-ms=0"}));
  ASSERT_TRUE(server.WaitForLog("event=serving"));
  Stubs stubs(server);
  Callers others(server, RequestOf(1, "other"));
  for (int i = 0; i < 5; ++i) {
    others.WaitForAnswers(Callers::kCallers);
    v1::MatmulResponse response;
    grpc::Status status = Matmul(stubs, RequestOf(kRowsThatFail), &response);
    EXPECT_EQ(status.error_code(), StatusCode::INTERNAL) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("out of resources"));
    status = Matmul(stubs, RequestOf(5), &response);
    EXPECT_TRUE(status.ok()) << "the same weight: " << status.error_message();
  }
  others.WaitForAnswers(Callers::kCallers);
  EXPECT_TRUE(others.End().empty());
  grpc::ClientContext context;
  SetDeadline(context);
  HealthCheckResponse health;
  ASSERT_TRUE(stubs.health->Check(&context, HealthCheckRequest(), &health).ok());
  EXPECT_EQ(health.status(), HealthCheckResponse::SERVING);
  EXPECT_EQ(Sample(server.HttpGet("/metrics"), "nibble_inflight_requests"), 0);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.ExitCode(), 0);
  EXPECT_THAT(server.log(), HasSubstr("event=\"batch failed\""));
}

TEST_F(DeviceFaultTest, ADeviceLostUnderLoadAnswersEveryCaller) {
  ServerProcess server(Flags({"--drain-grace-ms=0"}));
  ASSERT_TRUE(server.WaitForLog("event=serving"));
  Stubs stubs(server);
  Callers others(server, RequestOf(1, "other"));
  others.WaitForAnswers(2 * Callers::kCallers);
  v1::MatmulResponse response;
  const grpc::Status status = Matmul(stubs, RequestOf(kRowsThatLoseTheDevice), &response);
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE) << status.error_message();
  const std::vector<grpc::Status> failures = others.End(/*enough=*/false);
  EXPECT_EQ(failures.size(), static_cast<size_t>(Callers::kCallers));
  for (const grpc::Status& failure : failures) {
    EXPECT_EQ(failure.error_code(), StatusCode::UNAVAILABLE) << failure.error_message();
  }
  EXPECT_EQ(server.ExitCode(), kExitDeviceLost);
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
