// One AttachMemory call: a region of shared memory that lives as long as the call.
//
//   read the request -> attach, write the reply -> wait for the caller's side to close, a
//   cancellation or a drain -> detach, end
#ifndef NIBBLE_SERVER_SERVICE_ATTACH_MEMORY_CALL_H_
#define NIBBLE_SERVER_SERVICE_ATTACH_MEMORY_CALL_H_

#include <memory>
#include <mutex>

#include "server/service/call.h"
#include "server/service/stream_registry.h"

namespace nibble::server {

class AttachMemoryCall final
    : public grpc::ServerBidiReactor<v1::AttachMemoryRequest, v1::AttachMemoryResponse>,
      public DrainableStream {
 public:
  AttachMemoryCall(ServiceContext& service, RpcMetrics* rpc, StreamRegistry& registry,
                   const grpc::CallbackServerContext& context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void Drain() override;

 private:
  // With mutex_ held.
  absl::Status Attach();
  void End(const absl::Status& status);

  ServiceContext& service_;
  const CallTracker::Live live_;
  RequestMeter meter_;
  StreamRegistry& registry_;
  const std::string peer_;

  std::mutex mutex_;
  v1::AttachMemoryRequest request_;
  v1::AttachMemoryResponse response_;
  std::shared_ptr<SharedRegion> region_;
  bool ended_ = false;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_ATTACH_MEMORY_CALL_H_
