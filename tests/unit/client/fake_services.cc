#include "tests/unit/client/fake_services.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "nibble/client_tensor.h"

namespace nibble::testing {
namespace {

using client::RoundTo;

constexpr int64_t kGroup = 128;

// Holds a call until its caller gives up.
class HeldCall final : public grpc::ServerUnaryReactor {
 public:
  explicit HeldCall(FakeServer& server) : server_(server) { server_.NoteHeld(); }
  void OnCancel() override {
    server_.NoteCancelled();
    Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  FakeServer& server_;
};

// Codes and scales of v [M, d], in binary32, straight from the wire's definitions.
void Quantize(const std::vector<float>& v, int64_t d, const v1::OutputQuant& quant, v1::DType x,
              v1::Tensor& y, std::optional<v1::Tensor>& scales) {
  const int64_t m = static_cast<int64_t>(v.size()) / d;
  if (quant.mode() == v1::QUANT_MODE_NONE) {
    y = client::TensorFromFloats(v, {m, d}, x).value();
    return;
  }
  const v1::DType dtype =
      quant.dtype() == v1::DTYPE_UNSPECIFIED ? v1::DTYPE_F8_E4M3 : quant.dtype();
  const float top = dtype == v1::DTYPE_I8 ? 127.0f : 448.0f;
  const int64_t group = quant.mode() == v1::QUANT_MODE_PER_GROUP ? kGroup : d;
  std::vector<float> codes(v.size());
  std::vector<float> all_scales;
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t begin = 0; begin < d; begin += group) {
      const auto first = static_cast<size_t>(row * d + begin);
      const auto last = static_cast<size_t>(row * d + std::min(begin + group, d));
      float amax = 0.0f;
      for (size_t i = first; i < last; ++i) amax = std::max(amax, std::fabs(v[i]));
      const float scale = quant.mode() == v1::QUANT_MODE_STATIC ? quant.static_scale()
                                                                : std::max(amax / top, 0x1p-100f);
      for (size_t i = first; i < last; ++i) codes[i] = v[i] / scale;
      all_scales.push_back(scale);
    }
  }
  y = client::TensorFromFloats(codes, {m, d}, dtype).value();
  if (quant.mode() == v1::QUANT_MODE_STATIC) return;
  const int64_t per_row = (d + group - 1) / group;
  scales = client::TensorFromFloats(all_scales, {m, per_row}, v1::DTYPE_F32).value();
}

}  // namespace

grpc::ServerUnaryReactor* FakeLinear::Matmul(grpc::CallbackServerContext* context,
                                             const v1::MatmulRequest* request,
                                             v1::MatmulResponse* response) {
  const grpc::Status refusal = server_.Enter("Matmul", *context);
  if (refusal.ok() && server_.holding()) return new HeldCall(server_);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(refusal.ok() ? server_.Compute(*request, *response) : refusal);
  return reactor;
}

grpc::Status FakeLinear::MatmulStream(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::MatmulStreamResponse, v1::MatmulRequest>* stream) {
  if (grpc::Status status = server_.Enter("MatmulStream", *context); !status.ok()) return status;
  std::vector<v1::MatmulStreamResponse> kept;
  v1::MatmulRequest request;
  while (stream->Read(&request)) {
    v1::MatmulStreamResponse response;
    response.set_request_id(request.request_id());
    const grpc::Status status = server_.Compute(request, *response.mutable_result());
    if (!status.ok()) {
      response.mutable_error()->set_code(status.error_code());
      response.mutable_error()->set_message(status.error_message());
    }
    if (server_.reversed()) {
      kept.push_back(response);
    } else {
      stream->Write(response);
    }
  }
  for (auto reply = kept.rbegin(); reply != kept.rend(); ++reply) stream->Write(*reply);
  return grpc::Status::OK;
}

grpc::Status FakeLinear::Dequantize(grpc::ServerContext* context,
                                    const v1::DequantizeRequest* request,
                                    grpc::ServerWriter<v1::DequantizeResponse>* writer) {
  const grpc::Status refusal = server_.Enter("Dequantize", *context);
  if (!refusal.ok() && refusal.error_code() != grpc::StatusCode::DATA_LOSS) return refusal;
  FakeWeight weight;
  if (grpc::Status status = server_.Find(request->weight(), weight); !status.ok()) return status;
  const int64_t begin = request->row_begin();
  const int64_t end = request->row_count() == 0 ? weight.n : begin + request->row_count();
  if (begin < 0 || end > weight.n) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "row_begin: out of range");
  }
  const v1::DType dtype =
      request->dtype() == v1::DTYPE_UNSPECIFIED ? weight.dtype : request->dtype();
  constexpr int64_t kRowsOfChunk = 3;
  for (int64_t row = begin; row < end; row += kRowsOfChunk) {
    const int64_t rows = std::min(kRowsOfChunk, end - row);
    v1::DequantizeResponse response;
    response.set_row_begin(row);
    response.mutable_info()->set_kernel("fake_decode");
    *response.mutable_rows() =
        client::TensorFromFloats(
            std::span(weight.values)
                .subspan(static_cast<size_t>(row * weight.k), static_cast<size_t>(rows * weight.k)),
            {rows, weight.k}, dtype)
            .value();
    if (!writer->Write(response)) break;
    // A failure of this code comes after the first chunk.
    if (!refusal.ok()) return grpc::Status(grpc::StatusCode::UNAVAILABLE, refusal.error_message());
  }
  return grpc::Status::OK;
}

grpc::Status FakeLinear::NormQuant(grpc::ServerContext* context,
                                   const v1::NormQuantRequest* request,
                                   v1::NormQuantResponse* response) {
  if (grpc::Status status = server_.Enter("NormQuant", *context); !status.ok()) return status;
  FakeWeight named;
  std::vector<float> gamma;
  if (request->has_gamma_weight()) {
    if (grpc::Status status = server_.Find(request->gamma_weight(), named); !status.ok()) {
      return status;
    }
    gamma = named.values;
  } else {
    gamma = client::FloatsFromTensor(request->gamma_inline()).value();
  }
  const v1::DType dtype = request->x().dtype();
  std::vector<float> h = client::FloatsFromTensor(request->x()).value();
  const auto d = static_cast<int64_t>(gamma.size());
  if (request->has_residual()) {
    const std::vector<float> residual = client::FloatsFromTensor(request->residual()).value();
    for (size_t i = 0; i < h.size(); ++i) h[i] = RoundTo(dtype, h[i] + residual[i]);
    *response->mutable_residual() =
        client::TensorFromFloats(h, {static_cast<int64_t>(h.size()) / d, d}, dtype).value();
  }
  const float epsilon = request->has_epsilon() ? request->epsilon() : 1e-6f;
  for (size_t row = 0; row < h.size(); row += gamma.size()) {
    float sum = 0.0f;
    for (size_t i = 0; i < gamma.size(); ++i) sum += h[row + i] * h[row + i];
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(d) + epsilon);
    for (size_t i = 0; i < gamma.size(); ++i) {
      h[row + i] = RoundTo(dtype, RoundTo(dtype, h[row + i] * scale) * gamma[i]);
    }
  }
  std::optional<v1::Tensor> scales;
  Quantize(h, d, request->quant(), dtype, *response->mutable_y(), scales);
  if (scales) *response->mutable_scales() = *scales;
  response->mutable_info()->set_kernel("fake_norm");
  response->set_request_id(request->request_id());
  return grpc::Status::OK;
}

grpc::Status FakeLinear::SiluMulQuant(grpc::ServerContext* context,
                                      const v1::SiluMulQuantRequest* request,
                                      v1::SiluMulQuantResponse* response) {
  if (grpc::Status status = server_.Enter("SiluMulQuant", *context); !status.ok()) return status;
  const std::vector<float> x = client::FloatsFromTensor(request->x()).value();
  const int64_t d = request->x().shape(request->x().shape_size() - 1) / 2;
  const v1::DType dtype = request->x().dtype();
  std::vector<float> v;
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(2 * d)) {
    for (size_t i = 0; i < static_cast<size_t>(d); ++i) {
      const float gate = x[row + i];
      const float silu = RoundTo(dtype, gate / (1.0f + std::exp(-gate)));
      v.push_back(RoundTo(dtype, silu * x[row + static_cast<size_t>(d) + i]));
    }
  }
  std::optional<v1::Tensor> scales;
  Quantize(v, d, request->quant(), dtype, *response->mutable_y(), scales);
  if (scales) *response->mutable_scales() = *scales;
  response->mutable_info()->set_kernel("fake_silu");
  return grpc::Status::OK;
}

grpc::Status FakeLinear::Echo(grpc::ServerContext* context, const v1::EchoRequest* request,
                              v1::EchoResponse* response) {
  if (grpc::Status status = server_.Enter("Echo", *context); !status.ok()) return status;
  response->set_payload(std::string(request->response_bytes(), 'e'));
  return grpc::Status::OK;
}

grpc::Status FakeWeights::Load(grpc::ServerContext* context, const v1::LoadRequest* request,
                               grpc::ServerWriter<v1::LoadProgress>* writer) {
  if (grpc::Status status = server_.Enter("Load", *context); !status.ok()) return status;
  server_.NoteLoad(*request);
  for (int layer = 1; layer <= 2; ++layer) {
    v1::LoadProgress progress;
    progress.set_bytes_done(512 * layer);
    progress.set_bytes_total(1024);
    progress.set_layers_done(layer);
    progress.set_layers_total(2);
    progress.set_layer("layer." + std::to_string(layer));
    progress.set_done(layer == 2);
    if (layer == 2) progress.add_notices("left out: " + request->path() + "/lm_head");
    writer->Write(progress);
  }
  return grpc::Status::OK;
}

grpc::Status FakeWeights::Upload(grpc::ServerContext* context,
                                 grpc::ServerReader<v1::UploadRequest>* reader,
                                 v1::UploadResponse* response) {
  if (grpc::Status status = server_.Enter("Upload", *context); !status.ok()) return status;
  ReceivedUpload upload;
  v1::UploadRequest part;
  while (reader->Read(&part)) {
    if (part.has_header()) {
      upload.header = part.header();
    } else {
      upload.chunk_bytes.push_back(static_cast<int64_t>(part.chunk().size()));
      upload.bytes += part.chunk();
    }
  }
  if (context->IsCancelled()) return grpc::Status::CANCELLED;
  response->add_weights(upload.header.name());
  server_.NoteUpload(std::move(upload));
  return grpc::Status::OK;
}

grpc::Status FakeWeights::Unload(grpc::ServerContext* context, const v1::UnloadRequest* request,
                                 v1::UnloadResponse* response) {
  if (grpc::Status status = server_.Enter("Unload", *context); !status.ok()) return status;
  FakeWeight weight;
  if (grpc::Status status = server_.Find(request->name(), weight); !status.ok()) return status;
  response->set_weights(1);
  response->set_freed_bytes(weight.n * weight.k * 2);
  return grpc::Status::OK;
}

grpc::Status FakeWeights::List(grpc::ServerContext* context, const v1::ListRequest* request,
                               v1::ListResponse* response) {
  if (grpc::Status status = server_.Enter("List", *context); !status.ok()) return status;
  for (const std::string& name : server_.names()) {
    if (!name.starts_with(request->prefix())) continue;
    FakeWeight weight;
    server_.Find(name, weight);
    v1::WeightSummary& summary = *response->add_weights();
    summary.set_name(name);
    summary.set_version(3);
    summary.set_state(v1::WEIGHT_STATE_READY);
    summary.mutable_format()->set_format(v1::WEIGHT_FORMAT_NF4);
    summary.mutable_format()->set_block_size(64);
    summary.mutable_format()->set_nested(true);
    summary.set_n(weight.n);
    summary.set_k(weight.k);
    summary.set_device_bytes(weight.n * weight.k * 2);
    summary.set_device("cpu:0");
  }
  return grpc::Status::OK;
}

grpc::Status FakeWeights::Describe(grpc::ServerContext* context, const v1::DescribeRequest* request,
                                   v1::DescribeResponse* response) {
  if (grpc::Status status = server_.Enter("Describe", *context); !status.ok()) return status;
  FakeWeight weight;
  if (grpc::Status status = server_.Find(request->name(), weight); !status.ok()) return status;
  response->mutable_summary()->set_name(request->name());
  response->mutable_summary()->set_state(v1::WEIGHT_STATE_READY);
  response->mutable_summary()->mutable_format()->set_format(v1::WEIGHT_FORMAT_FP8);
  response->mutable_summary()->set_n(weight.n);
  response->mutable_summary()->set_k(weight.k);
  response->set_dtype(weight.dtype);
  response->set_input_scale(0.5f);
  response->mutable_counters()->set_requests(41);
  v1::KernelChoice& choice = *response->add_kernels();
  choice.set_m_begin(1);
  choice.set_m_end(4096);
  choice.set_kernel("fake_gemm");
  return grpc::Status::OK;
}

grpc::Status FakeWeights::Explain(grpc::ServerContext* context, const v1::ExplainRequest* request,
                                  v1::ExplainResponse* response) {
  if (grpc::Status status = server_.Enter("Explain", *context); !status.ok()) return status;
  response->set_device(request->device().empty() ? "cpu:0" : request->device());
  response->set_device_description("a fake device");
  const int64_t max_m = request->max_m() == 0 ? 4096 : request->max_m();
  v1::KernelChoice& gemv = *response->add_kernels();
  gemv.set_m_begin(1);
  gemv.set_m_end(4);
  gemv.set_kernel("fake_gemv");
  gemv.set_split_k(2);
  gemv.set_source(v1::KERNEL_SOURCE_MEASURED);
  gemv.set_predicted_begin_us(1.5);
  gemv.set_predicted_end_us(2.5);
  gemv.set_measured_begin_us(9);
  gemv.set_measured_end_us(12);
  const auto measure = [&](int64_t m, std::string_view kernel, double us) {
    if (response->measured_size() == 0 || response->measured().rbegin()->m() != m) {
      response->add_measured()->set_m(m);
    }
    v1::MeasuredTime& time = *response->mutable_measured()->rbegin()->add_times();
    time.set_kernel(std::string(kernel));
    time.set_us(us);
  };
  measure(1, "fake_gemv", 9);
  measure(1, "fake_gemm", 20);
  measure(4, "fake_gemv", 12);
  v1::KernelChoice& gemm = *response->add_kernels();
  gemm.set_m_begin(5);
  gemm.set_m_end(max_m);
  gemm.set_kernel("fake_gemm");
  gemm.set_tile_m(16);
  gemm.set_tile_n(64);
  gemm.set_tile_k(static_cast<int32_t>(request->hypothetical().k()));
  gemm.set_source(v1::KERNEL_SOURCE_TABLE);
  return grpc::Status::OK;
}

grpc::Status FakeHealth::Check(grpc::ServerContext* context,
                               const grpc::health::v1::HealthCheckRequest* request,
                               grpc::health::v1::HealthCheckResponse* response) {
  if (grpc::Status status = server_.Enter("Check", *context); !status.ok()) return status;
  if (request->service() == "unknown") {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "service: not known");
  }
  response->set_status(server_.health().front());
  return grpc::Status::OK;
}

grpc::Status FakeHealth::Watch(grpc::ServerContext* context,
                               const grpc::health::v1::HealthCheckRequest*,
                               grpc::ServerWriter<grpc::health::v1::HealthCheckResponse>* writer) {
  if (grpc::Status status = server_.Enter("Watch", *context); !status.ok()) return status;
  for (const auto state : server_.health()) {
    grpc::health::v1::HealthCheckResponse response;
    response.set_status(state);
    writer->Write(response);
  }
  return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is leaving");
}

}  // namespace nibble::testing
