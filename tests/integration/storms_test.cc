// Storms of cancellations and deadlines; weights that come and go, and an end, under load.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "tests/integration/faults_fixture.h"
#include "tests/integration/load_process.h"

namespace nibble::testing {
namespace {

using grpc::StatusCode;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kGenerous{50};

// Calls of one completion queue, all started at once.
class Storms : public FaultsTest {};

class Storm {
 public:
  explicit Storm(v1::Linear::Stub& linear) : linear_(linear) {}

  void Add(const v1::MatmulRequest& request, std::chrono::system_clock::time_point deadline) {
    Call& call = *calls_.emplace_back(std::make_unique<Call>());
    call.context.set_deadline(deadline);
    call.reader = linear_.AsyncMatmul(&call.context, request, &queue_);
    call.reader->Finish(&call.response, &call.status, &call);
  }
  void CancelAll() {
    for (const auto& call : calls_) call->context.TryCancel();
  }
  // Waits for every call, and calls `each` with its status and answer.
  void Finish(const std::function<void(const grpc::Status&, const v1::MatmulResponse&)>& each) {
    for (size_t i = 0; i < calls_.size(); ++i) {
      void* tag = nullptr;
      bool ok = false;
      ASSERT_TRUE(queue_.Next(&tag, &ok));
      const Call& call = *static_cast<Call*>(tag);
      each(call.status, call.response);
    }
    calls_.clear();
  }

 private:
  struct Call {
    grpc::ClientContext context;
    v1::MatmulResponse response;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::MatmulResponse>> reader;
  };
  v1::Linear::Stub& linear_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<Call>> calls_;
};

TEST_F(Storms, OfCancellations) {
  Start();
  Storm storm(*stubs().linear);
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 200; ++i) {
      storm.Add(good(), std::chrono::system_clock::now() + kGenerous);
    }
    // Some have been answered by now, some run, some wait, some are still on their way.
    storm.CancelAll();
    storm.Finish([this](const grpc::Status& status, const v1::MatmulResponse& response) {
      if (status.ok()) {
        EXPECT_EQ(response.y().data(), expected());
      } else {
        EXPECT_EQ(status.error_code(), StatusCode::CANCELLED) << status.error_message();
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    grpc::ClientContext context;
    auto stream = stubs().linear->MatmulStream(&context);
    stream->Write(good());
    stream->Write(good());
    context.TryCancel();
    stream->Finish();
  }
  ExpectWell();
}

TEST_F(Storms, OfDeadlines) {
  Start();
  Storm storm(*stubs().linear);
  for (int i = 0; i < 800; ++i) {
    storm.Add(good(),
              std::chrono::system_clock::now() + std::chrono::microseconds(100 * (i % 100)));
  }
  storm.Finish([this](const grpc::Status& status, const v1::MatmulResponse& response) {
    if (status.ok()) {
      EXPECT_EQ(response.y().data(), expected());
    } else {
      EXPECT_EQ(status.error_code(), StatusCode::DEADLINE_EXCEEDED) << status.error_message();
    }
  });
  for (int i = 0; i < 50; ++i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(i % 5));
    v1::DequantizeRequest request;
    request.set_weight(layer());
    auto reader = stubs().linear->Dequantize(&context, request);
    for (v1::DequantizeResponse chunk; reader->Read(&chunk);) {
    }
    EXPECT_THAT(reader->Finish().error_code(),
                AnyOf(StatusCode::OK, StatusCode::DEADLINE_EXCEEDED));
  }
  ExpectWell();
}

class Weights : public FaultsTest {
 protected:
  // Callers on connections of their own, who call until they are stopped and keep what they got.
  class Crowd {
   public:
    Crowd(const ServerProcess& server, const v1::MatmulRequest& request, int callers) {
      for (int i = 0; i < callers; ++i) {
        threads_.emplace_back([this, &server, request] {
          Stubs stubs(server);
          while (!stop_) {
            grpc::ClientContext context;
            context.set_deadline(std::chrono::system_clock::now() + kGenerous);
            v1::MatmulResponse response;
            const grpc::Status status = stubs.linear->Matmul(&context, request, &response);
            if (status.ok()) ++served_;
            std::lock_guard lock(mutex_);
            codes_.insert(status.error_code());
            if (status.ok()) answers_.insert(response.y().data());
          }
        });
      }
    }
    ~Crowd() { Stop(); }
    int served() const { return served_; }
    void Stop() {
      stop_ = true;
      for (std::thread& thread : threads_) thread.join();
      threads_.clear();
    }
    const std::set<StatusCode>& codes() const { return codes_; }
    const std::set<std::string>& answers() const { return answers_; }

   private:
    std::atomic<bool> stop_{false};
    std::atomic<int> served_{0};
    std::mutex mutex_;
    std::set<StatusCode> codes_;
    std::set<std::string> answers_;
    std::vector<std::thread> threads_;
  };

  double Resident() const {
    return Metric("nibble_weights_resident_bytes{device=\"cpu:0\",format=\"int4\"}");
  }
  double Used() const {
    return Metric("nibble_device_memory_bytes{device=\"cpu:0\",kind=\"used\"}");
  }
};

TEST_F(Weights, ComeAndGoUnderLoad) {
  Start();
  const double resident = Resident();
  ASSERT_GT(resident, 0);
  {
    Crowd crowd(server(), good(), 4);
    for (int i = 0; i < 10; ++i) {
      const int served = crowd.served();
      WaitUntil("the callers are served", [&] { return crowd.served() > served; });
      const grpc::Status unloaded = Unload(stubs(), "m");
      ASSERT_TRUE(unloaded.ok()) << unloaded.error_message();
      const grpc::Status loaded = Load(stubs(), "m", "gptq_falcon3_1b_int4");
      ASSERT_TRUE(loaded.ok()) << loaded.error_message();
    }
    crowd.Stop();
    for (const StatusCode code : crowd.codes()) {
      EXPECT_THAT(code,
                  AnyOf(StatusCode::OK, StatusCode::NOT_FOUND, StatusCode::FAILED_PRECONDITION));
    }
    EXPECT_EQ(crowd.answers(), std::set<std::string>{expected()});
  }
  EXPECT_EQ(Resident(), resident);
  ExpectWell();
}

TEST_F(Weights, ThatDoNotFitLeaveNothingBehind) {
  Start({"--cpu-memory-bytes=256KiB"});
  // What fits comes and goes; the gauge is set by that, and counts the memory of requests too.
  const auto load_what_fits = [this] {
    EXPECT_TRUE(Load(stubs(), "small", "bnb_odd_elements").ok());
    EXPECT_TRUE(Unload(stubs(), "small").ok());
  };
  load_what_fits();
  const double used = Used();
  ASSERT_GT(used, 0);
  v1::ListResponse before;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stubs().weights->List(&context, {}, &before).ok());
  }
  for (int i = 0; i < 20; ++i) {
    v1::UploadResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    auto upload = stubs().weights->Upload(&context, &response);
    v1::UploadRequest message;
    v1::UploadHeader* header = message.mutable_header();
    header->set_name("large");
    header->set_total_bytes(1 << 20);
    header->mutable_matrix()->set_dtype(v1::DTYPE_BF16);
    header->mutable_matrix()->add_shape(512);
    header->mutable_matrix()->add_shape(1024);
    header->mutable_matrix()->mutable_target()->set_format(v1::WEIGHT_FORMAT_DENSE);
    upload->Write(message);
    message.set_chunk(std::string(1 << 20, '\1'));
    upload->Write(message);
    upload->WritesDone();
    const grpc::Status refused = upload->Finish();
    EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  }
  EXPECT_EQ(Used(), used);
  v1::ListResponse after;
  grpc::ClientContext context;
  ASSERT_TRUE(stubs().weights->List(&context, {}, &after).ok());
  EXPECT_EQ(after.weights_size(), before.weights_size());
  load_what_fits();
  EXPECT_EQ(Used(), used);
  ExpectWell();
}

TEST_F(Weights, ATerminationUnderEveryKindOfLoadIsOrderly) {
  Start({"--drain-timeout-ms=3600000"});
  LoadProcess streams(server(), layer(), {"--transport", "stream", "--rows", "3"});
  Crowd crowd(server(), good(), 3);
  grpc::ClientContext upload_context;
  v1::UploadResponse upload_response;
  auto upload = stubs().weights->Upload(&upload_context, &upload_response);
  v1::UploadRequest header;
  header.mutable_header()->set_name("u");
  header.mutable_header()->set_total_bytes(1000);
  header.mutable_header()->mutable_checkpoint();
  ASSERT_TRUE(upload->Write(header));
  WaitUntil("both are served",
            [&] { return crowd.served() > 20 && Served("MatmulStream") > 20 && Inflight() > 0; });
  server().Signal(SIGTERM);
  EXPECT_EQ(server().ExitCode(), 0) << server().log();
  crowd.Stop();
  EXPECT_EQ(upload->Finish().error_code(), StatusCode::UNAVAILABLE);
  // A call that comes in while the listener closes is cancelled by the library.
  for (const StatusCode code : crowd.codes()) {
    EXPECT_THAT(code, AnyOf(StatusCode::OK, StatusCode::UNAVAILABLE, StatusCode::CANCELLED));
  }
  EXPECT_EQ(crowd.answers(), std::set<std::string>{expected()});
  EXPECT_THAT(server().log(), HasSubstr("all_finished=true"));
  EXPECT_THAT(server().log(), ::testing::Not(HasSubstr("Sanitizer")));
}

}  // namespace
}  // namespace nibble::testing
