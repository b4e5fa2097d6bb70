// One Upload call: the bytes are spooled to an unnamed file in memory as they arrive, never ahead
// of them, then parsed and loaded on a worker.
#ifndef NIBBLE_SERVER_SERVICE_UPLOAD_CALL_H_
#define NIBBLE_SERVER_SERVICE_UPLOAD_CALL_H_

#include <atomic>
#include <memory>

#include "nibble/v1/weights.grpc.pb.h"
#include "server/loader/loader.h"
#include "server/service/call.h"
#include "server/service/spool.h"
#include "server/service/worker_pool.h"

namespace nibble::server {

class UploadCall final : public grpc::ServerReadReactor<v1::UploadRequest> {
 public:
  // `workers` outlives the call.
  UploadCall(ServiceContext& service, RpcMetrics* rpc, uint64_t max_upload_bytes,
             WorkerPool& workers, absl::Status admitted, v1::UploadResponse* response);

  void OnReadDone(bool ok) override;
  void OnCancel() override { cancelled_.store(true, std::memory_order_relaxed); }
  void OnDone() override { delete this; }

 private:
  absl::Status TakeHeader(const v1::UploadHeader& header);
  absl::Status TakeChunk(const std::string& chunk);
  absl::StatusOr<Loaded> LoadSpooled();
  void End(const absl::Status& status);

  ServiceContext& service_;
  const CallTracker::Live live_;
  RequestMeter meter_;
  const uint64_t max_upload_bytes_;
  WorkerPool& workers_;
  v1::UploadResponse* const response_;
  v1::UploadRequest request_;
  bool has_header_ = false;
  v1::UploadHeader header_;
  std::unique_ptr<Spool> spool_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_UPLOAD_CALL_H_
