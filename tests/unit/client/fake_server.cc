#include "tests/unit/client/fake_server.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/server_callback.h>

#include <algorithm>

#include "tests/unit/client/fake_services.h"

namespace nibble::testing {

FakeWeight MakeWeight(int64_t n, int64_t k) {
  FakeWeight weight{n, k, v1::DTYPE_BF16, {}};
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t col = 0; col < k; ++col) {
      weight.values.push_back(static_cast<float>((row * 5 + col * 3) % 17 - 8) / 8.0f);
    }
  }
  return weight;
}

struct FakeServer::Services {
  explicit Services(FakeServer& server) : linear(server), weights(server), health(server) {}
  FakeLinear linear;
  FakeWeights weights;
  FakeHealth health;
};

FakeServer::FakeServer(const FakeServerOptions& options)
    : health_({grpc::health::v1::HealthCheckResponse::SERVING}),
      services_(std::make_unique<Services>(*this)) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  if (!options.unix_path.empty()) {
    builder.AddListeningPort("unix:" + options.unix_path, grpc::InsecureServerCredentials());
  }
  if (options.max_receive_bytes > 0) builder.SetMaxReceiveMessageSize(options.max_receive_bytes);
  builder.RegisterService(&services_->linear);
  builder.RegisterService(&services_->weights);
  builder.RegisterService(&services_->health);
  server_ = builder.BuildAndStart();
  address_ = "127.0.0.1:" + std::to_string(port);
}

FakeServer::~FakeServer() {
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

client::ClientOptions FakeServer::Options() const {
  client::ClientOptions options;
  options.address = address_;
  options.control_address = address_;
  options.retry.initial_backoff = std::chrono::milliseconds(1);
  options.retry.max_backoff = std::chrono::milliseconds(2);
  return options;
}

std::unique_ptr<client::Client> FakeServer::MakeClient(const client::ClientOptions& options) {
  return client::Client::Create(options).value();
}

void FakeServer::AddWeight(const std::string& name, FakeWeight weight) {
  std::lock_guard lock(mutex_);
  weights_[name] = std::move(weight);
}

void FakeServer::FailNext(const std::string& method, std::vector<grpc::Status> statuses) {
  std::lock_guard lock(mutex_);
  failures_[method].assign(statuses.begin(), statuses.end());
}

void FakeServer::HoldMatmul() {
  std::lock_guard lock(mutex_);
  hold_ = true;
}

void FakeServer::WaitForHeld() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return held_ > 0; });
}

void FakeServer::WaitForCancelled() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return cancelled_ > 0; });
}

void FakeServer::CorruptMatmul(float error) {
  std::lock_guard lock(mutex_);
  corruption_ = error;
}

void FakeServer::SetHealth(
    std::vector<grpc::health::v1::HealthCheckResponse::ServingStatus> states) {
  std::lock_guard lock(mutex_);
  health_ = std::move(states);
}

void FakeServer::SetReplyOrderReversed() {
  std::lock_guard lock(mutex_);
  reversed_ = true;
}

bool FakeServer::reversed() const {
  std::lock_guard lock(mutex_);
  return reversed_;
}

int FakeServer::calls(const std::string& method) const {
  std::lock_guard lock(mutex_);
  const auto found = calls_.find(method);
  return found == calls_.end() ? 0 : found->second;
}

std::string FakeServer::authorization() const {
  std::lock_guard lock(mutex_);
  return authorization_;
}

std::vector<v1::LoadRequest> FakeServer::loads() const {
  std::lock_guard lock(mutex_);
  return loads_;
}

void FakeServer::NoteLoad(const v1::LoadRequest& request) {
  std::lock_guard lock(mutex_);
  loads_.push_back(request);
}

std::vector<ReceivedUpload> FakeServer::uploads() const {
  std::lock_guard lock(mutex_);
  return uploads_;
}

grpc::Status FakeServer::Enter(const std::string& method, const grpc::ServerContextBase& context) {
  std::lock_guard lock(mutex_);
  ++calls_[method];
  const auto header = context.client_metadata().find("authorization");
  authorization_ = header == context.client_metadata().end()
                       ? ""
                       : std::string(header->second.data(), header->second.size());
  std::deque<grpc::Status>& failures = failures_[method];
  if (failures.empty()) return grpc::Status::OK;
  const grpc::Status status = failures.front();
  failures.pop_front();
  return status;
}

grpc::Status FakeServer::Find(const std::string& name, FakeWeight& weight) const {
  std::lock_guard lock(mutex_);
  const auto found = weights_.find(name);
  if (found == weights_.end()) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "weight: no weight named \"" + name + "\"");
  }
  weight = found->second;
  return grpc::Status::OK;
}

grpc::Status FakeServer::Compute(const v1::MatmulRequest& request,
                                 v1::MatmulResponse& response) const {
  FakeWeight weight;
  if (grpc::Status status = Find(request.weight(), weight); !status.ok()) return status;
  const absl::StatusOr<std::vector<float>> x = client::FloatsFromTensor(request.x());
  if (!x.ok() || static_cast<int64_t>(x->size()) % weight.k != 0) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "x: expected [M, K]");
  }
  const int64_t m = static_cast<int64_t>(x->size()) / weight.k;
  std::vector<float> y(static_cast<size_t>(m * weight.n));
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t out = 0; out < weight.n; ++out) {
      float sum = 0.0f;
      for (int64_t i = 0; i < weight.k; ++i) {
        sum += (*x)[static_cast<size_t>(row * weight.k + i)] *
               weight.values[static_cast<size_t>(out * weight.k + i)];
      }
      y[static_cast<size_t>(row * weight.n + out)] = sum;
    }
  }
  if (!y.empty()) y[0] += corruption_;
  const v1::DType dtype = request.output_dtype() == v1::DTYPE_UNSPECIFIED ? request.x().dtype()
                                                                          : request.output_dtype();
  response.set_request_id(request.request_id());
  *response.mutable_y() = client::TensorFromFloats(y, {m, weight.n}, dtype).value();
  response.mutable_info()->set_kernel("fake_gemm");
  response.mutable_info()->set_batch_rows(m);
  response.mutable_info()->set_queue_us(7);
  response.mutable_info()->set_compute_us(11);
  response.mutable_info()->set_device("cpu:0");
  response.mutable_info()->set_batches(1);
  return grpc::Status::OK;
}

std::vector<std::string> FakeServer::names() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, weight] : weights_) names.push_back(name);
  return names;
}

bool FakeServer::holding() const {
  std::lock_guard lock(mutex_);
  return hold_;
}

void FakeServer::NoteHeld() {
  std::lock_guard lock(mutex_);
  ++held_;
  changed_.notify_all();
}

void FakeServer::NoteCancelled() {
  std::lock_guard lock(mutex_);
  ++cancelled_;
  changed_.notify_all();
}

void FakeServer::NoteUpload(ReceivedUpload upload) {
  std::lock_guard lock(mutex_);
  uploads_.push_back(std::move(upload));
}

std::vector<grpc::health::v1::HealthCheckResponse::ServingStatus> FakeServer::health() const {
  std::lock_guard lock(mutex_);
  return health_;
}

}  // namespace nibble::testing
