// One Echo call: bytes in, bytes out, over the same path as tensors and without the engine.
#ifndef NIBBLE_SERVER_SERVICE_ECHO_CALL_H_
#define NIBBLE_SERVER_SERVICE_ECHO_CALL_H_

#include "server/service/call.h"

namespace nibble::server {

class EchoCall final : public grpc::ServerUnaryReactor {
 public:
  EchoCall(ServiceContext& service, RpcMetrics* rpc, const grpc::CallbackServerContext& context,
           const grpc::ByteBuffer& wire, grpc::ByteBuffer* response);
  void OnDone() override { delete this; }

 private:
  const CallTracker::Live live_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_ECHO_CALL_H_
