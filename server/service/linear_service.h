// The data plane over gRPC: thin. Each method parses, submits and encodes; the work is the
// engine's.
#ifndef NIBBLE_SERVER_SERVICE_LINEAR_SERVICE_H_
#define NIBBLE_SERVER_SERVICE_LINEAR_SERVICE_H_

#include <memory>

#include "nibble/v1/linear.grpc.pb.h"
#include "server/service/call.h"
#include "server/service/stream_registry.h"

namespace nibble::server {

class LinearService final : public v1::Linear::CallbackService {
 public:
  explicit LinearService(ServiceContext& service);

  // Lets every open stream finish what it has accepted and then ends it.
  void DrainStreams() { streams_.DrainAll(); }

  grpc::ServerUnaryReactor* Matmul(grpc::CallbackServerContext* context,
                                   const v1::MatmulRequest* request,
                                   v1::MatmulResponse* response) override;
  grpc::ServerBidiReactor<v1::MatmulRequest, v1::MatmulStreamResponse>* MatmulStream(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::DequantizeResponse>* Dequantize(
      grpc::CallbackServerContext* context, const v1::DequantizeRequest* request) override;
  grpc::ServerUnaryReactor* NormQuant(grpc::CallbackServerContext* context,
                                      const v1::NormQuantRequest* request,
                                      v1::NormQuantResponse* response) override;
  grpc::ServerUnaryReactor* SiluMulQuant(grpc::CallbackServerContext* context,
                                         const v1::SiluMulQuantRequest* request,
                                         v1::SiluMulQuantResponse* response) override;

 private:
  ServiceContext& service_;
  const RequestBuilder builder_;
  RpcMetrics* const matmul_metrics_;
  RpcMetrics* const matmul_stream_metrics_;
  RpcMetrics* const dequantize_metrics_;
  RpcMetrics* const norm_quant_metrics_;
  RpcMetrics* const silu_mul_quant_metrics_;
  StreamRegistry streams_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_LINEAR_SERVICE_H_
