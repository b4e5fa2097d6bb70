// The data plane over gRPC: thin. Each method parses, submits and encodes; the work is the
// engine's. Messages come and go as the transport's own buffers, so that tensors are not copied on
// the way.
#ifndef NIBBLE_SERVER_SERVICE_LINEAR_SERVICE_H_
#define NIBBLE_SERVER_SERVICE_LINEAR_SERVICE_H_

#include "nibble/v1/linear.grpc.pb.h"
#include "server/service/call.h"
#include "server/service/stream_registry.h"

namespace nibble::server {

using RawLinearService = v1::Linear::WithRawCallbackMethod_Matmul<
    v1::Linear::WithRawCallbackMethod_MatmulStream<v1::Linear::WithRawCallbackMethod_Dequantize<
        v1::Linear::WithRawCallbackMethod_NormQuant<v1::Linear::WithRawCallbackMethod_SiluMulQuant<
            v1::Linear::WithCallbackMethod_AttachMemory<
                v1::Linear::WithRawCallbackMethod_Echo<v1::Linear::Service>>>>>>>;

class LinearService final : public RawLinearService {
 public:
  explicit LinearService(ServiceContext& service);

  // Lets every open stream finish what it has accepted and then ends it.
  void DrainStreams() { streams_.DrainAll(); }

  grpc::ServerUnaryReactor* Matmul(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* MatmulStream(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Dequantize(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* NormQuant(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* SiluMulQuant(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<v1::AttachMemoryRequest, v1::AttachMemoryResponse>* AttachMemory(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override;

 private:
  ServiceContext& service_;
  const RequestBuilder builder_;
  RpcMetrics* const matmul_metrics_;
  RpcMetrics* const matmul_stream_metrics_;
  RpcMetrics* const dequantize_metrics_;
  RpcMetrics* const norm_quant_metrics_;
  RpcMetrics* const silu_mul_quant_metrics_;
  RpcMetrics* const attach_memory_metrics_;
  RpcMetrics* const echo_metrics_;
  StreamRegistry streams_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_LINEAR_SERVICE_H_
