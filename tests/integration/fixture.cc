#include "tests/integration/fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <random>
#include <sstream>
#include <utility>

#include "nibble/numeric.h"
#include "server/checkpoint/safetensors.h"

namespace nibble::testing {
namespace {

constexpr char kLayer[] = "model.layers.0.mlp.down_proj";

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // A connection of its own, so that tests in one process do not share one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

v1::DType WireDType(const std::string& name) {
  if (name == "BF16") return v1::DTYPE_BF16;
  if (name == "F16") return v1::DTYPE_F16;
  return name == "F32" ? v1::DTYPE_F32 : v1::DTYPE_UNSPECIFIED;
}

v1::Tensor FromFile(const checkpoint::TensorEntry& entry) {
  return MakeTensor(WireDType(entry.dtype), entry.shape,
                    {reinterpret_cast<const char*>(entry.data.data()), entry.data.size()});
}

}  // namespace

Stubs::Stubs(const ServerProcess& server)
    : data_channel(Connect(server.data_address())),
      control_channel(Connect(server.control_address())),
      linear(v1::Linear::NewStub(data_channel)),
      weights(v1::Weights::NewStub(control_channel)),
      health(grpc::health::v1::Health::NewStub(data_channel)) {
  AwaitConnection(*data_channel);
  AwaitConnection(*control_channel);
}

std::string GoldenRoot() { return std::string(NIBBLE_SOURCE_DIR) + "/tests/golden"; }

std::vector<std::string> GoldenNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(GoldenRoot())) {
    if (std::filesystem::exists(entry.path() / "model.safetensors")) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

Golden ReadGolden(const std::string& name) {
  const auto file =
      checkpoint::SafetensorsFile::Open(GoldenRoot() + "/" + name + "/expected.safetensors");
  Golden golden;
  golden.name = name;
  golden.layer = name + "/" + kLayer;
  if (!file.ok()) {
    ADD_FAILURE() << file.status();
    return golden;
  }
  golden.weight = FromFile(*file->Find("weight"));
  golden.x = FromFile(*file->Find("x"));
  golden.n = golden.weight.shape(0);
  golden.k = golden.weight.shape(1);
  const checkpoint::TensorEntry* y = file->Find("y");
  golden.y.resize(static_cast<size_t>(y->elements()));
  std::memcpy(golden.y.data(), y->data.data(), y->data.size());
  return golden;
}

v1::Tensor MakeTensor(v1::DType dtype, std::vector<int64_t> shape, std::string data) {
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  for (int64_t dimension : shape) tensor.add_shape(dimension);
  tensor.set_data(std::move(data));
  return tensor;
}

v1::Tensor Rows(const v1::Tensor& tensor, int64_t rows) {
  const auto available = static_cast<size_t>(tensor.shape(0));
  const size_t row_bytes = tensor.data().size() / available;
  std::string data;
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    data.append(tensor.data(), row % available * row_bytes, row_bytes);
  }
  return MakeTensor(tensor.dtype(), {rows, tensor.shape(1)}, std::move(data));
}

v1::Tensor RandomBF16(int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::string data(static_cast<size_t>(rows * cols) * 2, '\0');
  for (int64_t i = 0; i < rows * cols; ++i) {
    StoreFromFloat(data.data(), DType::kBF16, i, normal(generator));
  }
  return MakeTensor(v1::DTYPE_BF16, {rows, cols}, std::move(data));
}

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(50));
  context.set_wait_for_ready(true);
}

void AwaitConnection(grpc::Channel& channel) {
  EXPECT_TRUE(
      channel.WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(50)));
}

grpc::Status Load(Stubs& stubs, const std::string& name, const std::string& path,
                  std::vector<v1::LoadProgress>* progress) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::LoadRequest request;
  request.set_name(name);
  request.set_path(path);
  auto reader = stubs.weights->Load(&context, request);
  v1::LoadProgress message;
  while (reader->Read(&message)) {
    if (progress != nullptr) progress->push_back(message);
  }
  return reader->Finish();
}

grpc::Status Unload(Stubs& stubs, const std::string& name, v1::UnloadResponse* response) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::UnloadRequest request;
  request.set_name(name);
  v1::UnloadResponse ignored;
  return stubs.weights->Unload(&context, request, response == nullptr ? &ignored : response);
}

grpc::Status Matmul(Stubs& stubs, const v1::MatmulRequest& request, v1::MatmulResponse* response) {
  grpc::ClientContext context;
  SetDeadline(context);
  return stubs.linear->Matmul(&context, request, response);
}

v1::MatmulRequest MatmulOf(const std::string& weight, const v1::Tensor& x) {
  v1::MatmulRequest request;
  request.set_weight(weight);
  *request.mutable_x() = x;
  return request;
}

double Sample(const std::string& text, const std::string& series) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(series, 0) == 0) return std::stod(line.substr(line.rfind(' ') + 1));
  }
  return -1;
}

}  // namespace nibble::testing
