// Echo: bytes in, bytes out, over the same path as tensors and without the engine.
#ifndef NIBBLE_SERVER_SERVICE_ECHO_CALL_H_
#define NIBBLE_SERVER_SERVICE_ECHO_CALL_H_

#include "server/service/call.h"

namespace nibble::server {

// Answers at once.
grpc::ServerUnaryReactor* AnswerEcho(ServiceContext& service, RpcMetrics* rpc,
                                     grpc::CallbackServerContext& context,
                                     const grpc::ByteBuffer& wire, grpc::ByteBuffer* response);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_ECHO_CALL_H_
