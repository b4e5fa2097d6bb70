// A nibble server of canned behaviour, in this process: it computes plainly over weights that the
// test gives it, records what it was asked, and fails or holds calls when told to.
#ifndef NIBBLE_TESTS_UNIT_CLIENT_FAKE_SERVER_H_
#define NIBBLE_TESTS_UNIT_CLIENT_FAKE_SERVER_H_

#include <grpcpp/server.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "grpc/health/v1/health.pb.h"
#include "nibble/client.h"
#include "nibble/v1/weights.pb.h"

namespace nibble::testing {

// A resident weight: the values that it decodes to.
struct FakeWeight {
  int64_t n = 0;
  int64_t k = 0;
  v1::DType dtype = v1::DTYPE_BF16;
  std::vector<float> values;  // [N, K]
};

// w[n][k]: small multiples of 1/8 that every type holds exactly; no two rows alike.
FakeWeight MakeWeight(int64_t n, int64_t k);

// What an upload brought.
struct ReceivedUpload {
  v1::UploadHeader header;
  std::vector<int64_t> chunk_bytes;
  std::string bytes;
};

struct FakeServerOptions {
  // 0: the stock limit.
  int max_receive_bytes = 0;
  // Listened on besides the port when given.
  std::string unix_path{};
};

class FakeServer {
 public:
  explicit FakeServer(const FakeServerOptions& options = {});
  ~FakeServer();

  // "127.0.0.1:PORT", for both planes.
  const std::string& address() const { return address_; }
  // A client of both planes with short pauses between attempts.
  client::ClientOptions Options() const;
  std::unique_ptr<client::Client> MakeClient() const { return MakeClient(Options()); }
  static std::unique_ptr<client::Client> MakeClient(const client::ClientOptions& options);

  void AddWeight(const std::string& name, FakeWeight weight);

  // The next calls of `method` ("Matmul", "Load", ...) are answered with these, in order.
  void FailNext(const std::string& method, std::vector<grpc::Status> statuses);
  // Calls of Matmul are held, unanswered, until they are cancelled.
  void HoldMatmul();
  // Until a held call is there; until one was cancelled.
  void WaitForHeld();
  void WaitForCancelled();
  // Every y comes back with this added to its element [0, 0].
  void CorruptMatmul(float error);
  void SetHealth(std::vector<grpc::health::v1::HealthCheckResponse::ServingStatus> states);
  void SetReplyOrderReversed();

  int calls(const std::string& method) const;
  // The authorization header of the last call.
  std::string authorization() const;
  std::vector<ReceivedUpload> uploads() const;
  std::vector<v1::LoadRequest> loads() const;

  // For the services.
  grpc::Status Enter(const std::string& method, const grpc::ServerContextBase& context);
  grpc::Status Compute(const v1::MatmulRequest& request, v1::MatmulResponse& response) const;
  grpc::Status Find(const std::string& name, FakeWeight& weight) const;
  std::vector<std::string> names() const;
  bool holding() const;
  void NoteHeld();
  void NoteCancelled();
  void NoteUpload(ReceivedUpload upload);
  void NoteLoad(const v1::LoadRequest& request);
  bool reversed() const;
  std::vector<grpc::health::v1::HealthCheckResponse::ServingStatus> health() const;

 private:
  struct Services;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, FakeWeight> weights_;
  std::map<std::string, int> calls_;
  std::map<std::string, std::deque<grpc::Status>> failures_;
  std::vector<ReceivedUpload> uploads_;
  std::vector<v1::LoadRequest> loads_;
  std::vector<grpc::health::v1::HealthCheckResponse::ServingStatus> health_;
  std::string authorization_;
  bool hold_ = false;
  bool reversed_ = false;
  int held_ = 0;
  int cancelled_ = 0;
  float corruption_ = 0.0f;
  std::string address_;
  std::unique_ptr<Services> services_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace nibble::testing

#endif  // NIBBLE_TESTS_UNIT_CLIENT_FAKE_SERVER_H_
