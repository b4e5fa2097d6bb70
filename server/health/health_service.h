// grpc.health.v1: the state of each service and, under the empty name, of the server. Everything
// starts as NOT_SERVING.
#ifndef NIBBLE_SERVER_HEALTH_HEALTH_SERVICE_H_
#define NIBBLE_SERVER_HEALTH_HEALTH_SERVICE_H_

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"

namespace nibble::server {

class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  // `services`: the full names that are known beside the empty one.
  explicit HealthService(const std::vector<std::string>& services);

  // Every service is SERVING from now on; does nothing after StopServing.
  void StartServing();
  // Every service is NOT_SERVING from now on, for good.
  void StopServing();
  // Ends every Watch, so that a shutdown need not wait for them.
  void EndWatches();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  using ServingStatus = grpc::health::v1::HealthCheckResponse::ServingStatus;
  class Watcher;

  // With mutex_ held.
  void SetAll(ServingStatus status);

  std::mutex mutex_;
  std::map<std::string, ServingStatus, std::less<>> services_;
  std::set<Watcher*> watchers_;
  bool stopped_ = false;
  bool ended_ = false;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_HEALTH_HEALTH_SERVICE_H_
