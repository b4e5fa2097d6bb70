// The services of the fake server.
#ifndef NIBBLE_TESTS_UNIT_CLIENT_FAKE_SERVICES_H_
#define NIBBLE_TESTS_UNIT_CLIENT_FAKE_SERVICES_H_

#include "grpc/health/v1/health.grpc.pb.h"
#include "nibble/v1/linear.grpc.pb.h"
#include "nibble/v1/weights.grpc.pb.h"
#include "tests/unit/client/fake_server.h"

namespace nibble::testing {

class FakeLinear final : public v1::Linear::WithCallbackMethod_Matmul<v1::Linear::Service> {
 public:
  explicit FakeLinear(FakeServer& server) : server_(server) {}
  grpc::ServerUnaryReactor* Matmul(grpc::CallbackServerContext* context,
                                   const v1::MatmulRequest* request,
                                   v1::MatmulResponse* response) override;
  grpc::Status MatmulStream(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::MatmulStreamResponse, v1::MatmulRequest>* stream) override;
  grpc::Status Dequantize(grpc::ServerContext* context, const v1::DequantizeRequest* request,
                          grpc::ServerWriter<v1::DequantizeResponse>* writer) override;
  grpc::Status NormQuant(grpc::ServerContext* context, const v1::NormQuantRequest* request,
                         v1::NormQuantResponse* response) override;
  grpc::Status SiluMulQuant(grpc::ServerContext* context, const v1::SiluMulQuantRequest* request,
                            v1::SiluMulQuantResponse* response) override;
  grpc::Status Echo(grpc::ServerContext* context, const v1::EchoRequest* request,
                    v1::EchoResponse* response) override;

 private:
  FakeServer& server_;
};

class FakeWeights final : public v1::Weights::Service {
 public:
  explicit FakeWeights(FakeServer& server) : server_(server) {}
  grpc::Status Load(grpc::ServerContext* context, const v1::LoadRequest* request,
                    grpc::ServerWriter<v1::LoadProgress>* writer) override;
  grpc::Status Upload(grpc::ServerContext* context, grpc::ServerReader<v1::UploadRequest>* reader,
                      v1::UploadResponse* response) override;
  grpc::Status Unload(grpc::ServerContext* context, const v1::UnloadRequest* request,
                      v1::UnloadResponse* response) override;
  grpc::Status List(grpc::ServerContext* context, const v1::ListRequest* request,
                    v1::ListResponse* response) override;
  grpc::Status Describe(grpc::ServerContext* context, const v1::DescribeRequest* request,
                        v1::DescribeResponse* response) override;
  grpc::Status Explain(grpc::ServerContext* context, const v1::ExplainRequest* request,
                       v1::ExplainResponse* response) override;

 private:
  FakeServer& server_;
};

class FakeHealth final : public grpc::health::v1::Health::Service {
 public:
  explicit FakeHealth(FakeServer& server) : server_(server) {}
  grpc::Status Check(grpc::ServerContext* context,
                     const grpc::health::v1::HealthCheckRequest* request,
                     grpc::health::v1::HealthCheckResponse* response) override;
  // Every state that was set, one after the other; then the stream ends.
  grpc::Status Watch(grpc::ServerContext* context,
                     const grpc::health::v1::HealthCheckRequest* request,
                     grpc::ServerWriter<grpc::health::v1::HealthCheckResponse>* writer) override;

 private:
  FakeServer& server_;
};

}  // namespace nibble::testing

#endif  // NIBBLE_TESTS_UNIT_CLIENT_FAKE_SERVICES_H_
