// The control plane over gRPC: thin. Loads and uploads run on worker threads.
#ifndef NIBBLE_SERVER_SERVICE_WEIGHTS_SERVICE_H_
#define NIBBLE_SERVER_SERVICE_WEIGHTS_SERVICE_H_

#include <atomic>
#include <string>

#include "nibble/v1/weights.grpc.pb.h"
#include "server/service/call.h"
#include "server/service/stream_registry.h"
#include "server/service/worker_pool.h"

namespace nibble::server {

struct WeightsOptions {
  std::string weights_root;
  uint64_t max_upload_bytes = 0;
  int worker_threads = 2;
};

class WeightsService final : public v1::Weights::CallbackService {
 public:
  WeightsService(ServiceContext& service, WeightsOptions options);

  // Makes loads that are under way end with kUnavailable at the next layer, and uploads at once.
  void StopLoads() {
    stopping_.store(true, std::memory_order_relaxed);
    uploads_.DrainAll();
  }

  grpc::ServerWriteReactor<v1::LoadProgress>* Load(grpc::CallbackServerContext* context,
                                                   const v1::LoadRequest* request) override;
  grpc::ServerReadReactor<v1::UploadRequest>* Upload(grpc::CallbackServerContext* context,
                                                     v1::UploadResponse* response) override;
  grpc::ServerUnaryReactor* Unload(grpc::CallbackServerContext* context,
                                   const v1::UnloadRequest* request,
                                   v1::UnloadResponse* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListRequest* request,
                                 v1::ListResponse* response) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest* request,
                                     v1::DescribeResponse* response) override;
  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const v1::ExplainRequest* request,
                                    v1::ExplainResponse* response) override;

 private:
  ServiceContext& service_;
  const WeightsOptions options_;
  RpcMetrics* const load_metrics_;
  RpcMetrics* const upload_metrics_;
  RpcMetrics* const unload_metrics_;
  RpcMetrics* const list_metrics_;
  RpcMetrics* const describe_metrics_;
  RpcMetrics* const explain_metrics_;
  std::atomic<bool> stopping_{false};
  StreamRegistry uploads_;
  WorkerPool workers_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_WEIGHTS_SERVICE_H_
