// Start, health, reload and unload under load, drain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tests/integration/fixture.h"

namespace nibble::testing {
namespace {

using grpc::StatusCode;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr char kModel[] = "gptq_falcon3_1b_int4";

std::string ModelFlag() { return std::string("--model=m=") + GoldenRoot() + "/" + kModel; }
std::string LayerOf(const std::string& model) { return model + "/model.layers.0.mlp.down_proj"; }

TEST(Lifecycle, HealthFollowsTheModelsAndTheDrain) {
  ServerProcess server({ModelFlag(), "--drain-grace-ms=200"});
  Stubs stubs(server);
  ASSERT_TRUE(server.WaitForLog("event=serving"));
  for (const char* service : {"", "nibble.v1.Linear", "nibble.v1.Weights"}) {
    grpc::ClientContext context;
    SetDeadline(context);
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    ASSERT_TRUE(stubs.health->Check(&context, request, &response).ok());
    EXPECT_EQ(response.status(), HealthCheckResponse::SERVING) << service;
  }
  {
    grpc::ClientContext context;
    SetDeadline(context);
    HealthCheckRequest request;
    request.set_service("no.such.Service");
    HealthCheckResponse response;
    EXPECT_EQ(stubs.health->Check(&context, request, &response).error_code(),
              StatusCode::NOT_FOUND);
  }
  grpc::ClientContext context;
  SetDeadline(context);
  auto watch = stubs.health->Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  server.Signal(SIGTERM);
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  // During the grace period requests are still served: the listener closes after it.
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(server.ExitCode(), 0);
}

TEST(Lifecycle, AConfiguredModelThatCannotBeLoadedEndsTheServer) {
  ServerProcess server({"--model=m=" + GoldenRoot() + "/nowhere"});
  EXPECT_EQ(server.ExitCode(), 1);
  EXPECT_THAT(server.log(), ::testing::HasSubstr("nowhere"));
}

TEST(Lifecycle, WrongConfigurationIsNamed) {
  ServerProcess server({"--max-batch-rowz=3"});
  EXPECT_EQ(server.ExitCode(), 2);
  EXPECT_THAT(server.log(), ::testing::HasSubstr("max-batch-rows"));
}

TEST(Lifecycle, AnAddressInUseIsNamed) {
  ServerProcess first({});
  ServerProcess second({"--listen=" + first.data_address()});
  EXPECT_EQ(second.ExitCode(), 1);
  EXPECT_THAT(second.log(), ::testing::HasSubstr(first.data_address()));
}

TEST(Lifecycle, ASecondSignalEndsAtOnce) {
  ServerProcess server({"--drain-grace-ms=600000"});
  server.Signal(SIGINT);
  ASSERT_TRUE(server.WaitForLog("event=drain_begin"));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.ExitCode(), 128 + SIGTERM);
}

// Callers that call until told to stop or, unless `persistent`, until an error; and what they were
// answered.
class Callers {
 public:
  Callers(const ServerProcess& server, const std::string& weight, int count,
          bool persistent = false)
      : persistent_(persistent) {
    const Golden golden = ReadGolden(kModel);
    const v1::MatmulRequest request = MatmulOf(weight, golden.x);
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this, &server, request] {
        Stubs stubs(server);
        while (!stop_) {
          grpc::ClientContext context;
          context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(50));
          v1::MatmulResponse response;
          const grpc::Status status = stubs.linear->Matmul(&context, request, &response);
          std::lock_guard lock(mutex_);
          ++codes_[status.error_code()];
          if (status.ok()) {
            answers_.insert(response.y().data());
            versions_.insert(response.info().weight_version());
            ++served_;
          } else {
            last_error_ = status.error_message();
            if (!persistent_) break;
          }
        }
      });
    }
  }
  ~Callers() { Stop(); }

  void WaitForServed(int count) {
    const int target = served_ + count;
    while (served_ < target) std::this_thread::yield();
  }
  // Waits for callers that end by themselves, too.
  void Join() {
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  void Stop() {
    stop_ = true;
    Join();
  }

  std::map<StatusCode, int> codes() const { return codes_; }
  const std::set<std::string>& answers() const { return answers_; }
  const std::set<uint64_t>& versions() const { return versions_; }
  const std::string& last_error() const { return last_error_; }

 private:
  const bool persistent_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false};
  std::atomic<int> served_{0};
  std::mutex mutex_;
  std::map<StatusCode, int> codes_;
  std::set<std::string> answers_;
  std::set<uint64_t> versions_;
  std::string last_error_;
};

TEST(Lifecycle, ReloadUnderLoadLosesNothing) {
  ServerProcess server({"--weights-root=" + GoldenRoot(), ModelFlag()});
  ASSERT_TRUE(server.WaitForLog("event=serving"));
  Stubs stubs(server);
  Callers callers(server, LayerOf("m"), 6);
  for (int i = 0; i < 5; ++i) {
    callers.WaitForServed(20);
    const grpc::Status loaded = Load(stubs, "m", kModel);
    ASSERT_TRUE(loaded.ok()) << loaded.error_message();
  }
  callers.WaitForServed(20);
  callers.Stop();
  EXPECT_EQ(callers.codes().size(), 1u) << callers.last_error();
  EXPECT_EQ(callers.answers().size(), 1u);
  EXPECT_GE(callers.versions().size(), 2u);
}

TEST(Lifecycle, UnloadUnderLoadAnswersWhenTheMemoryIsFree) {
  ServerProcess server({"--weights-root=" + GoldenRoot(), ModelFlag()});
  ASSERT_TRUE(server.WaitForLog("event=serving"));
  Stubs stubs(server);
  Callers callers(server, LayerOf("m"), 6);
  callers.WaitForServed(20);
  v1::UnloadResponse unloaded;
  const grpc::Status status = Unload(stubs, "m", &unloaded);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(unloaded.weights(), 1);
  EXPECT_GT(unloaded.freed_bytes(), 0);
  EXPECT_EQ(Sample(server.HttpGet("/metrics"),
                   "nibble_weights_resident_bytes{device=\"cpu:0\",format=\"int4\"}"),
            0);
  callers.Join();
  // Everything accepted was answered; then the name was gone, or for a moment draining.
  for (const auto& [code, count] : callers.codes()) {
    EXPECT_TRUE(code == StatusCode::OK || code == StatusCode::NOT_FOUND ||
                code == StatusCode::FAILED_PRECONDITION)
        << code << " " << callers.last_error();
  }
  EXPECT_EQ(callers.answers().size(), 1u);
}

TEST(Lifecycle, SigtermUnderLoadFinishesWhatWasAccepted) {
  ServerProcess server({ModelFlag()});
  ASSERT_TRUE(server.WaitForLog("event=serving"));
  Callers callers(server, LayerOf("m"), 6);
  callers.WaitForServed(50);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.ExitCode(), 0);
  callers.Join();
  for (const auto& [code, count] : callers.codes()) {
    EXPECT_TRUE(code == StatusCode::OK || code == StatusCode::UNAVAILABLE)
        << code << " " << callers.last_error();
  }
  EXPECT_EQ(callers.answers().size(), 1u);
}

TEST(Lifecycle, CallersThatKeepTryingDoNotHoldUpTheDrain) {
  ServerProcess server({ModelFlag(), "--drain-timeout-ms=3600000"});
  ASSERT_TRUE(server.WaitForLog("event=serving"));
  Callers callers(server, LayerOf("m"), 6, /*persistent=*/true);
  callers.WaitForServed(50);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.ExitCode(), 0);
  EXPECT_THAT(server.log(), ::testing::HasSubstr("all_finished=true"));
}

TEST(Lifecycle, AnOpenStreamDoesNotHoldUpTheDrain) {
  ServerProcess server({ModelFlag(), "--drain-timeout-ms=3600000"});
  ASSERT_TRUE(server.WaitForLog("event=serving"));
  Stubs stubs(server);
  const Golden golden = ReadGolden(kModel);
  grpc::ClientContext context;
  SetDeadline(context);
  auto stream = stubs.linear->MatmulStream(&context);
  v1::MatmulRequest request = MatmulOf(LayerOf("m"), golden.x);
  ASSERT_TRUE(stream->Write(request));
  v1::MatmulStreamResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_TRUE(response.has_result());
  server.Signal(SIGTERM);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(server.ExitCode(), 0);
}

TEST(Lifecycle, AnUploadThatStallsDoesNotHoldUpTheDrain) {
  ServerProcess server({"--drain-timeout-ms=3600000", "--drain-grace-ms=0"});
  Stubs stubs(server);
  grpc::ClientContext context;
  SetDeadline(context);
  v1::UploadResponse response;
  auto upload = stubs.weights->Upload(&context, &response);
  v1::UploadRequest request;
  request.mutable_header()->set_name("m");
  request.mutable_header()->set_total_bytes(1000);
  request.mutable_header()->mutable_checkpoint();
  ASSERT_TRUE(upload->Write(request));
  while (Sample(server.HttpGet("/metrics"), "nibble_inflight_requests") < 1) {
  }
  server.Signal(SIGTERM);
  const grpc::Status status = upload->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("draining"));
  EXPECT_EQ(server.ExitCode(), 0);
}

TEST(Lifecycle, CallersThatComeBackAtOnceDoNotHoldUpTheDrain) {
  ServerProcess server({ModelFlag(), "--drain-timeout-ms=3600000", "--drain-grace-ms=0"});
  ASSERT_TRUE(server.WaitForLog("event=serving"));
  std::atomic<bool> stop{false};
  std::atomic<int> served{0};
  std::vector<std::thread> callers;
  const v1::MatmulRequest request = MatmulOf(LayerOf("m"), ReadGolden(kModel).x);
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      Stubs stubs(server);
      while (!stop) {
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(50));
        v1::MatmulResponse response;
        if (stubs.linear->Matmul(&context, request, &response).ok()) ++served;
      }
    });
  }
  while (served < 3) std::this_thread::yield();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.ExitCode(), 0);
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_THAT(server.log(), ::testing::HasSubstr("all_finished=true"));
}

TEST(Lifecycle, WeightsArePlacedOverTheDevices) {
  ServerProcess server({"--weights-root=" + GoldenRoot(), "--cpu-devices=2"});
  Stubs stubs(server);
  std::set<std::string> devices;
  for (const std::string& name : GoldenNames()) {
    ASSERT_TRUE(Load(stubs, name, name).ok());
    v1::MatmulResponse response;
    const Golden golden = ReadGolden(name);
    ASSERT_TRUE(Matmul(stubs, MatmulOf(golden.layer, golden.x), &response).ok());
    devices.insert(response.info().device());
  }
  EXPECT_EQ(devices, (std::set<std::string>{"cpu:0", "cpu:1"}));
}

TEST(Lifecycle, AModelThatDoesNotFitIsRefusedAndLeavesNothing) {
  ServerProcess server({"--weights-root=" + GoldenRoot(), "--cpu-memory-bytes=4096"});
  Stubs stubs(server);
  const grpc::Status status = Load(stubs, "m", kModel);
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("3968 bytes free"));
  EXPECT_EQ(Sample(server.HttpGet("/metrics"),
                   "nibble_device_memory_bytes{device=\"cpu:0\",kind=\"used\"}"),
            0);
}

}  // namespace
}  // namespace nibble::testing
