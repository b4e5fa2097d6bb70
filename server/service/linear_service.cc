#include "server/service/linear_service.h"

#include <utility>

#include "server/service/attach_memory_call.h"
#include "server/service/dequantize_call.h"
#include "server/service/echo_call.h"
#include "server/service/matmul_stream.h"

namespace nibble::server {
namespace {

// A unary call of a method that reads tensors and answers with tensors.
template <typename Request, typename Response>
class TensorCall final : public UnaryCall {
 public:
  using Build = absl::StatusOr<Prepared> (RequestBuilder::*)(const TensorRequest<Request>&,
                                                             TensorReply<Response>*) const;
  using UnaryCall::UnaryCall;

  void Start(const ServiceContext& service, const RequestBuilder& builder, Build build,
             const grpc::CallbackServerContext& context, const grpc::ByteBuffer& wire) {
    absl::Status status = Admit(service, context, Plane::kData);
    if (status.ok()) status = request_.Parse(wire);
    Run(status.ok() ? (builder.*build)(request_, &reply_)
                    : absl::StatusOr<Prepared>(std::move(status)),
        context, reply_.fields.mutable_info());
  }

 private:
  grpc::ByteBuffer Encode() override { return reply_.Encode(); }
  void Drop() override { reply_.tensors.clear(); }

  TensorRequest<Request> request_;
  TensorReply<Response> reply_;
};

template <typename Request, typename Response>
grpc::ServerUnaryReactor* StartCall(
    ServiceContext& service, RpcMetrics* rpc, const RequestBuilder& builder,
    absl::StatusOr<Prepared> (RequestBuilder::*build)(const TensorRequest<Request>&,
                                                      TensorReply<Response>*) const,
    grpc::CallbackServerContext& context, const grpc::ByteBuffer& request,
    grpc::ByteBuffer* response) {
  auto* call = new TensorCall<Request, Response>(service, rpc, context, response);
  call->Start(service, builder, build, context, request);
  return call;
}

}  // namespace

LinearService::LinearService(ServiceContext& service)
    : service_(service),
      builder_(service.store, service.engine,
               TensorMemory(service.results, service.shared_memory, service.max_message_bytes)),
      matmul_metrics_(service.metrics.Rpc("Matmul")),
      matmul_stream_metrics_(service.metrics.Rpc("MatmulStream")),
      dequantize_metrics_(service.metrics.Rpc("Dequantize")),
      norm_quant_metrics_(service.metrics.Rpc("NormQuant")),
      silu_mul_quant_metrics_(service.metrics.Rpc("SiluMulQuant")),
      attach_memory_metrics_(service.metrics.Rpc("AttachMemory")),
      echo_metrics_(service.metrics.Rpc("Echo")) {}

grpc::ServerUnaryReactor* LinearService::Matmul(grpc::CallbackServerContext* context,
                                                const grpc::ByteBuffer* request,
                                                grpc::ByteBuffer* response) {
  return StartCall(service_, matmul_metrics_, builder_, &RequestBuilder::Matmul, *context, *request,
                   response);
}

grpc::ServerUnaryReactor* LinearService::NormQuant(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request,
                                                   grpc::ByteBuffer* response) {
  return StartCall(service_, norm_quant_metrics_, builder_, &RequestBuilder::NormQuant, *context,
                   *request, response);
}

grpc::ServerUnaryReactor* LinearService::SiluMulQuant(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* response) {
  return StartCall(service_, silu_mul_quant_metrics_, builder_, &RequestBuilder::SiluMulQuant,
                   *context, *request, response);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* LinearService::MatmulStream(
    grpc::CallbackServerContext* context) {
  return new MatmulStreamCall(service_, builder_, matmul_stream_metrics_, streams_, *context);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* LinearService::Dequantize(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return new DequantizeCall(service_, builder_, dequantize_metrics_, *context, *request);
}

grpc::ServerBidiReactor<v1::AttachMemoryRequest, v1::AttachMemoryResponse>*
LinearService::AttachMemory(grpc::CallbackServerContext* context) {
  return new AttachMemoryCall(service_, attach_memory_metrics_, streams_, *context);
}

grpc::ServerUnaryReactor* LinearService::Echo(grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) {
  return AnswerEcho(service_, echo_metrics_, *context, *request, response);
}

}  // namespace nibble::server
