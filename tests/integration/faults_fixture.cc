#include "tests/integration/faults_fixture.h"

#include <chrono>
#include <filesystem>
#include <thread>

#include "fmt/format.h"

namespace nibble::testing {
namespace {

constexpr char kModel[] = "gptq_falcon3_1b_int4";

// Threads that the transport starts under load and keeps, however many calls there are.
constexpr size_t kTransportThreads = 32;

size_t Entries(const std::string& directory) {
  std::error_code error;
  size_t count = 0;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    ++count;
  }
  return count;
}

}  // namespace

void FaultsTest::Start(std::vector<std::string> flags) {
  golden_ = ReadGolden(kModel);
  golden_.layer = "m/model.layers.0.mlp.down_proj";
  good_ = MatmulOf(golden_.layer, golden_.x);
  flags.insert(flags.begin(), {std::string("--model=m=") + GoldenRoot() + "/" + kModel,
                               "--weights-root=" + GoldenRoot(), "--cpu-threads=1"});
  server_ = std::make_unique<ServerProcess>(flags);
  ASSERT_TRUE(server_->WaitForLog("event=serving")) << server_->log();
  stubs_ = std::make_unique<Stubs>(*server_);
  // Both connections are made, and every thread of a call started, before the count.
  v1::MatmulResponse response;
  const grpc::Status status = Matmul(*stubs_, good_, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  expected_ = response.y().data();
  grpc::ClientContext context;
  SetDeadline(context);
  v1::ListResponse list;
  ASSERT_TRUE(stubs_->weights->List(&context, {}, &list).ok());
  idle_descriptors_ = Descriptors();
  idle_threads_ = Threads();
}

void FaultsTest::ExpectWell() {
  v1::MatmulResponse response;
  const grpc::Status status = Matmul(*stubs_, good_, &response);
  EXPECT_TRUE(status.ok()) << status.error_message() << "\n" << server_->log();
  EXPECT_EQ(response.y().data(), expected_);
  WaitUntil("no request is running", [this] { return Inflight() == 0; });
  EXPECT_EQ(QueuedRows(), 0);
  WaitUntil("the descriptors are closed", [this] { return Descriptors() <= idle_descriptors_; });
  EXPECT_LE(Threads(), idle_threads_ + kTransportThreads);
  const std::string log = server_->log();
  for (const char* report : {"Sanitizer", "runtime error", "event=device_lost"}) {
    EXPECT_EQ(log.find(report), std::string::npos) << log;
  }
}

double FaultsTest::Metric(const std::string& series) const {
  return Sample(server_->HttpGet("/metrics"), series);
}

double FaultsTest::Served(const std::string& method) const {
  return Metric(fmt::format("nibble_rpc_requests_total{{code=\"OK\",method=\"{}\"}}", method));
}

size_t FaultsTest::Descriptors() const {
  return Entries(fmt::format("/proc/{}/fd", server_->pid()));
}

size_t FaultsTest::Threads() const { return Entries(fmt::format("/proc/{}/task", server_->pid())); }

void FaultsTest::WaitUntil(const char* what, const std::function<bool()>& holds) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(40);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > give_up) {
      ADD_FAILURE() << "not reached: " << what;
      return;
    }
    std::this_thread::yield();
  }
}

}  // namespace nibble::testing
