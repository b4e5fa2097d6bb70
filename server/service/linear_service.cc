#include "server/service/linear_service.h"

#include "server/service/dequantize_call.h"
#include "server/service/matmul_stream.h"

namespace nibble::server {
namespace {

// Admission, then the request as prepared by `prepare`, on one reactor.
template <typename Response, typename Prepare>
grpc::ServerUnaryReactor* RunUnary(ServiceContext& service, RpcMetrics* rpc,
                                   grpc::CallbackServerContext* context, Response* response,
                                   const Prepare& prepare) {
  auto* call = new UnaryCall(service, rpc, response);
  absl::Status admitted = Admit(service, *context, Plane::kData);
  call->Run(admitted.ok() ? prepare() : absl::StatusOr<Prepared>(std::move(admitted)),
            DeadlineOf(*context, service.clock), response->mutable_info());
  return call;
}

}  // namespace

LinearService::LinearService(ServiceContext& service)
    : service_(service),
      builder_(service.store, service.engine, service.max_message_bytes),
      matmul_metrics_(service.metrics.Rpc("Matmul")),
      matmul_stream_metrics_(service.metrics.Rpc("MatmulStream")),
      dequantize_metrics_(service.metrics.Rpc("Dequantize")),
      norm_quant_metrics_(service.metrics.Rpc("NormQuant")),
      silu_mul_quant_metrics_(service.metrics.Rpc("SiluMulQuant")) {}

grpc::ServerUnaryReactor* LinearService::Matmul(grpc::CallbackServerContext* context,
                                                const v1::MatmulRequest* request,
                                                v1::MatmulResponse* response) {
  return RunUnary(service_, matmul_metrics_, context, response,
                  [&] { return builder_.Matmul(*request, response); });
}

grpc::ServerUnaryReactor* LinearService::NormQuant(grpc::CallbackServerContext* context,
                                                   const v1::NormQuantRequest* request,
                                                   v1::NormQuantResponse* response) {
  return RunUnary(service_, norm_quant_metrics_, context, response,
                  [&] { return builder_.NormQuant(*request, response); });
}

grpc::ServerUnaryReactor* LinearService::SiluMulQuant(grpc::CallbackServerContext* context,
                                                      const v1::SiluMulQuantRequest* request,
                                                      v1::SiluMulQuantResponse* response) {
  return RunUnary(service_, silu_mul_quant_metrics_, context, response,
                  [&] { return builder_.SiluMulQuant(*request, response); });
}

grpc::ServerBidiReactor<v1::MatmulRequest, v1::MatmulStreamResponse>* LinearService::MatmulStream(
    grpc::CallbackServerContext* context) {
  return new MatmulStreamCall(service_, builder_, matmul_stream_metrics_, streams_, *context);
}

grpc::ServerWriteReactor<v1::DequantizeResponse>* LinearService::Dequantize(
    grpc::CallbackServerContext* context, const v1::DequantizeRequest* request) {
  return new DequantizeCall(service_, builder_, dequantize_metrics_, *context, *request);
}

}  // namespace nibble::server
