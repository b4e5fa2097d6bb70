// What the integration tests share: stubs of a server process, tensors of safetensors files, short
// calls.
#ifndef NIBBLE_TESTS_INTEGRATION_FIXTURE_H_
#define NIBBLE_TESTS_INTEGRATION_FIXTURE_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "nibble/v1/linear.grpc.pb.h"
#include "nibble/v1/weights.grpc.pb.h"
#include "tests/support/server_process.h"

namespace nibble::testing {

// Stubs of one server, a channel for each plane.
struct Stubs {
  explicit Stubs(const ServerProcess& server);

  std::shared_ptr<grpc::Channel> data_channel;
  std::shared_ptr<grpc::Channel> control_channel;
  std::unique_ptr<v1::Linear::Stub> linear;
  std::unique_ptr<v1::Weights::Stub> weights;
  std::unique_ptr<grpc::health::v1::Health::Stub> health;
};

// A layer of a golden checkpoint: what the server should answer.
struct Golden {
  std::string name;   // the directory, and the model's name in these tests
  std::string layer;  // full name once loaded
  int64_t n = 0;
  int64_t k = 0;
  v1::Tensor weight;      // [N, K]
  v1::Tensor x;           // [5, K] BF16
  std::vector<double> y;  // [5, N]
};

std::string GoldenRoot();
std::vector<std::string> GoldenNames();
Golden ReadGolden(const std::string& name);

// Rows of `tensor` repeated cyclically to `rows`.
v1::Tensor Rows(const v1::Tensor& tensor, int64_t rows);
v1::Tensor MakeTensor(v1::DType dtype, std::vector<int64_t> shape, std::string data);
// [rows, cols] BF16 with values of about one, the same for a seed.
v1::Tensor RandomBF16(int64_t rows, int64_t cols, uint32_t seed);

// Calls with a generous deadline, so that a hang fails and does not last.
grpc::Status Load(Stubs& stubs, const std::string& name, const std::string& path,
                  std::vector<v1::LoadProgress>* progress = nullptr);
grpc::Status Unload(Stubs& stubs, const std::string& name, v1::UnloadResponse* response = nullptr);
grpc::Status Matmul(Stubs& stubs, const v1::MatmulRequest& request, v1::MatmulResponse* response);
v1::MatmulRequest MatmulOf(const std::string& weight, const v1::Tensor& x);
void SetDeadline(grpc::ClientContext& context);

// Waits until the channel has a connection, for calls that do not wait themselves. A first attempt
// may fail by chance: gRPC 1.51 reads the errno of connect() after calls that can change it.
void AwaitConnection(grpc::Channel& channel);

// The value of the first sample of the exposition `text` whose line starts with `series`; -1
// without one.
double Sample(const std::string& text, const std::string& series);

}  // namespace nibble::testing

#endif  // NIBBLE_TESTS_INTEGRATION_FIXTURE_H_
