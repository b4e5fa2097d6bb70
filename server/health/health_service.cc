#include "server/health/health_service.h"

namespace nibble::server {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// One Watch call. It sends the state it was last told, one write at a time; states that change
// while a write is under way are merged into the next one. Guarded by the service's mutex.
class HealthService::Watcher : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  Watcher(HealthService& service, const std::string& name) : service_(service) {
    std::lock_guard lock(service_.mutex_);
    const auto found = service_.services_.find(name);
    known_ = found != service_.services_.end();
    wanted_ = known_ ? found->second : HealthCheckResponse::SERVICE_UNKNOWN;
    service_.watchers_.insert(this);
    ending_ = service_.ended_;
    Advance();
  }

  // With the service's mutex held.
  void Tell(ServingStatus status) {
    if (!known_) return;
    wanted_ = status;
    Advance();
  }
  void End() {
    ending_ = true;
    Advance();
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(service_.mutex_);
    writing_ = false;
    if (!ok) cancelled_ = true;
    Advance();
  }
  void OnCancel() override {
    std::lock_guard lock(service_.mutex_);
    cancelled_ = true;
    Advance();
  }
  void OnDone() override {
    {
      std::lock_guard lock(service_.mutex_);
      service_.watchers_.erase(this);
    }
    delete this;
  }

 private:
  void Advance() {
    if (writing_ || finished_) return;
    if (wanted_ != sent_ && !cancelled_) {
      writing_ = true;
      sent_ = wanted_;
      response_.set_status(sent_);
      StartWrite(&response_);
    } else if (ending_ || cancelled_) {
      finished_ = true;
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the health watch has ended"));
    }
  }

  HealthService& service_;
  HealthCheckResponse response_;
  bool known_ = false;
  ServingStatus wanted_ = HealthCheckResponse::UNKNOWN;
  ServingStatus sent_ = HealthCheckResponse::UNKNOWN;
  bool writing_ = false;
  bool ending_ = false;     // by the server: the last state is still sent
  bool cancelled_ = false;  // by the client
  bool finished_ = false;
};

HealthService::HealthService(const std::vector<std::string>& services) {
  services_.emplace("", HealthCheckResponse::NOT_SERVING);
  for (const std::string& name : services) {
    services_.emplace(name, HealthCheckResponse::NOT_SERVING);
  }
}

void HealthService::SetAll(ServingStatus status) {
  for (auto& [name, current] : services_) current = status;
  for (Watcher* watcher : watchers_) watcher->Tell(status);
}

void HealthService::StartServing() {
  std::lock_guard lock(mutex_);
  if (!stopped_) SetAll(HealthCheckResponse::SERVING);
}

void HealthService::StopServing() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  SetAll(HealthCheckResponse::NOT_SERVING);
}

void HealthService::EndWatches() {
  std::lock_guard lock(mutex_);
  ended_ = true;
  for (Watcher* watcher : watchers_) watcher->End();
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  std::lock_guard lock(mutex_);
  const auto found = services_.find(request->service());
  if (found == services_.end()) {
    reactor->Finish(grpc::Status(grpc::StatusCode::NOT_FOUND,
                                 "service: '" + request->service() + "' is not served here"));
    return reactor;
  }
  response->set_status(found->second);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext*, const HealthCheckRequest* request) {
  return new Watcher(*this, request->service());
}

}  // namespace nibble::server
