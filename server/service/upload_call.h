// One Upload call: the bytes are spooled to an unnamed file in memory as they arrive, never ahead
// of them, then parsed and loaded on a worker. A drain ends it wherever it is.
#ifndef NIBBLE_SERVER_SERVICE_UPLOAD_CALL_H_
#define NIBBLE_SERVER_SERVICE_UPLOAD_CALL_H_

#include <atomic>
#include <memory>
#include <mutex>

#include "nibble/v1/weights.grpc.pb.h"
#include "server/loader/loader.h"
#include "server/service/call.h"
#include "server/service/spool.h"
#include "server/service/stream_registry.h"
#include "server/service/worker_pool.h"

namespace nibble::server {

class UploadCall final : public grpc::ServerReadReactor<v1::UploadRequest>, public DrainableStream {
 public:
  // `workers` and `registry` outlive the call.
  UploadCall(ServiceContext& service, RpcMetrics* rpc, uint64_t max_upload_bytes,
             WorkerPool& workers, StreamRegistry& registry, grpc::CallbackServerContext& context,
             v1::UploadResponse* response);

  void OnReadDone(bool ok) override;
  void OnCancel() override { cancelled_.store(true, std::memory_order_relaxed); }
  void OnDone() override;
  void Drain() override;

 private:
  // On a worker: loads what was spooled and ends the call.
  void Load();
  absl::StatusOr<Loaded> LoadSpooled();
  // With mutex_ held.
  void ReadNext();
  absl::Status TakeMessage();
  absl::Status TakeHeader(const v1::UploadHeader& header);
  absl::Status TakeChunk(const std::string& chunk);
  void End(const absl::Status& status);

  ServiceContext& service_;
  const CallTracker::Live live_;
  RequestMeter meter_;
  StallWatch::Wait stall_;
  const uint64_t max_upload_bytes_;
  WorkerPool& workers_;
  StreamRegistry& registry_;
  v1::UploadResponse* const response_;
  v1::UploadRequest request_;
  bool has_header_ = false;
  v1::UploadHeader header_;
  std::unique_ptr<Spool> spool_;
  uint64_t announced_bytes_ = 0;  // taken from the budget of uploads
  std::atomic<bool> cancelled_{false};

  std::mutex mutex_;
  bool loading_ = false;   // on a worker, which then ends the call
  bool draining_ = false;  // by the server
  bool ended_ = false;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_UPLOAD_CALL_H_
