#include "server/service/requests.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "nibble/ops.h"
#include "nibble/status.h"
#include "server/executor/operations.h"
#include "server/service/tensor_codec.h"

namespace nibble::server {
namespace {

constexpr int64_t kMaxDequantizeChunkBytes = int64_t{1} << 20;

// The scales of an F8_E4M3 x: how they are laid out and where row 0's are.
struct XScales {
  QuantMode mode = QuantMode::kNone;
  RowInput input;
};

absl::StatusOr<XScales> ParseXScales(const v1::Tensor& tensor, const TensorInput& input, int64_t m,
                                     int64_t k) {
  const WireMatrix& scales = input.matrix;
  if (scales.dtype != DType::kF32) {
    return absl::InvalidArgumentError(
        fmt::format("x_scales.dtype: expected F32; received {}", DTypeName(scales.dtype)));
  }
  const int64_t groups = ScalesPerRow(QuantMode::kPerGroup, k);
  const bool is_vector = tensor.shape_size() == 1;
  const int64_t rows = is_vector ? scales.cols : scales.rows;
  const int64_t per_row = is_vector ? 1 : scales.cols;
  constexpr int64_t kScaleBytes = 4;
  if (rows == m && per_row == 1) {
    return XScales{QuantMode::kPerToken, {input.data, kScaleBytes}};
  }
  if (rows == m && per_row == groups) {
    return XScales{QuantMode::kPerGroup, {input.data, groups * kScaleBytes}};
  }
  // One static scale is a scale per token that does not change from row to row.
  if (rows == 1 && per_row == 1) return XScales{QuantMode::kPerToken, {input.data, 0}};
  return absl::InvalidArgumentError(fmt::format(
      "x_scales.shape: expected [{}, 1] (per token), [{}, {}] (per group) or [1] (static); "
      "received {} x {}",
      m, m, groups, rows, per_row));
}

absl::Status CheckActivation(const WeightSpec& spec, DType x, QuantMode activation,
                             bool has_scales) {
  const bool is_fp8 = spec.format == Format::kFP8;
  if (x == DType::kF8E4M3) {
    if (!is_fp8) {
      return absl::InvalidArgumentError(fmt::format(
          "x.dtype: expected F32, F16 or BF16 for a weight of format {}; received F8_E4M3",
          FormatName(spec.format)));
    }
    if (!has_scales) {
      return absl::InvalidArgumentError(
          "x_scales: expected the scales of an F8_E4M3 x; received none");
    }
    if (activation != QuantMode::kNone) {
      return absl::InvalidArgumentError(fmt::format(
          "activation_quant: expected NONE for an x that is F8_E4M3 already; received {}",
          QuantModeName(activation)));
    }
    return absl::OkStatus();
  }
  if (!IsFloat16Or32(x)) {
    return absl::InvalidArgumentError(
        fmt::format("x.dtype: expected F32, F16, BF16 or F8_E4M3; received {}", DTypeName(x)));
  }
  if (has_scales) {
    return absl::InvalidArgumentError(
        fmt::format("x_scales: expected none for an x of {}; received some", DTypeName(x)));
  }
  if (activation != QuantMode::kNone && !is_fp8) {
    return absl::InvalidArgumentError(
        fmt::format("activation_quant: expected NONE for a weight of format {}; received {}",
                    FormatName(spec.format), QuantModeName(activation)));
  }
  if (activation == QuantMode::kStatic && !spec.has_input_scale) {
    return absl::InvalidArgumentError(
        "activation_quant: STATIC needs a weight that came with an input scale; this one has none");
  }
  return absl::OkStatus();
}

absl::Status CheckColumns(const WeightSpec& spec, std::string_view weight, const WireMatrix& x) {
  if (x.cols == spec.k) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "x.shape: expected {} as the last dimension (weight '{}' is {} x {}); received {}", spec.k,
      weight, spec.n, spec.k, x.cols));
}

absl::Status CheckActivationType(const WireMatrix& x) {
  if (IsFloat16Or32(x.dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("x.dtype: expected F32, F16 or BF16; received {}", DTypeName(x.dtype)));
}

// The output quantizer of a request, with the type it writes.
struct ParsedQuant {
  OutputQuant quant;
  DType y = DType::kF8E4M3;
};

absl::StatusOr<ParsedQuant> ParseOutputQuant(const v1::OutputQuant& wire, DType x) {
  ParsedQuant parsed;
  NIBBLE_ASSIGN_OR_RETURN(parsed.quant.mode, ParseQuantMode(wire.mode(), "quant.mode"));
  if (parsed.quant.mode == QuantMode::kNone) {
    parsed.y = x;
    return parsed;
  }
  NIBBLE_ASSIGN_OR_RETURN(parsed.y, ParseDType(wire.dtype(), DType::kF8E4M3,
                                               {DType::kF8E4M3, DType::kI8}, "quant.dtype"));
  if (parsed.quant.mode == QuantMode::kStatic) {
    if (!std::isfinite(wire.static_scale()) || !(wire.static_scale() > 0)) {
      return absl::InvalidArgumentError(
          fmt::format("quant.static_scale: expected a finite number above 0; received {}",
                      wire.static_scale()));
    }
    parsed.quant.static_scale = wire.static_scale();
  }
  return parsed;
}

// The place that a request names for a result, or null.
template <typename Request>
const v1::SharedSlice* YMemory(const Request& request) {
  return request.has_y_memory() ? &request.y_memory() : nullptr;
}

// Adds y, and scales where the mode has them, to the job and the reply.
template <typename Request, typename Response>
absl::Status AddQuantized(const TensorMemory& memory, const Request& request, int64_t rows,
                          int64_t d, const ParsedQuant& quant, TensorReply<Response>* reply,
                          Job& job) {
  const v1::Tensor& like = request.x();
  NIBBLE_RETURN_IF_ERROR(memory.AddResult({Response::kYFieldNumber, "y", like, rows, d, quant.y},
                                          YMemory(request), "y_memory", job, reply->tensors));
  const bool has_scales =
      quant.quant.mode == QuantMode::kPerToken || quant.quant.mode == QuantMode::kPerGroup;
  if (!has_scales) return absl::OkStatus();
  const int64_t per_row = ScalesPerRow(quant.quant.mode, d);
  return memory.AddResult(
      {Response::kScalesFieldNumber, "scales", like, rows, per_row, DType::kF32}, nullptr, "", job,
      reply->tensors);
}

Prepared Finish(KeyedOperation operation, std::shared_ptr<Job> job, Op op, int64_t rows) {
  Prepared prepared;
  prepared.work.key = operation.key;
  prepared.work.rows = rows;
  prepared.work.op = static_cast<int>(op);
  int64_t row_bytes = 0;
  for (int64_t bytes : operation.operation->input_row_bytes()) row_bytes += bytes;
  for (int64_t bytes : operation.operation->output_row_bytes()) row_bytes += bytes;
  prepared.work.bytes = static_cast<uint64_t>(rows) * static_cast<uint64_t>(row_bytes);
  job->operation = std::move(operation.operation);
  prepared.work.payload = std::move(job);
  return prepared;
}

}  // namespace

absl::StatusOr<Prepared> RequestBuilder::Matmul(const TensorRequest<v1::MatmulRequest>& received,
                                                TensorReply<v1::MatmulResponse>* reply) const {
  const v1::MatmulRequest& request = received.fields;
  NIBBLE_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  NIBBLE_ASSIGN_OR_RETURN(WeightHandle weight, store_.Acquire(request.weight()));
  const WeightSpec& spec = weight->weight().spec();
  auto job = std::make_shared<Job>();
  NIBBLE_ASSIGN_OR_RETURN(
      const TensorInput input,
      memory_.Read(request.x(), received.data.Of(v1::MatmulRequest::kXFieldNumber), "x", *job));
  const WireMatrix& x = input.matrix;
  NIBBLE_RETURN_IF_ERROR(CheckColumns(spec, request.weight(), x));
  MatmulOptions options;
  options.x = x.dtype;
  NIBBLE_ASSIGN_OR_RETURN(options.activation,
                          ParseQuantMode(request.activation_quant(), "activation_quant"));
  NIBBLE_RETURN_IF_ERROR(
      CheckActivation(spec, x.dtype, options.activation, request.has_x_scales()));
  NIBBLE_ASSIGN_OR_RETURN(
      options.y,
      ParseDType(request.output_dtype(), x.dtype == DType::kF8E4M3 ? DType::kBF16 : x.dtype,
                 {DType::kF32, DType::kF16, DType::kBF16}, "output_dtype"));

  job->inputs.push_back(input.rows());
  if (request.has_x_scales()) {
    NIBBLE_ASSIGN_OR_RETURN(
        const TensorInput scales_input,
        memory_.Read(request.x_scales(), received.data.Of(v1::MatmulRequest::kXScalesFieldNumber),
                     "x_scales", *job));
    NIBBLE_ASSIGN_OR_RETURN(const XScales scales,
                            ParseXScales(request.x_scales(), scales_input, x.rows, spec.k));
    options.x_scales = scales.mode;
    job->inputs.push_back(scales.input);
  }
  NIBBLE_RETURN_IF_ERROR(memory_.AddResult(
      {v1::MatmulResponse::kYFieldNumber, "y", request.x(), x.rows, spec.n, options.y},
      YMemory(request), "y_memory", *job, reply->tensors));
  reply->fields.set_request_id(request.request_id());
  Prepared prepared = Finish(MakeMatmul(weight, options), std::move(job), Op::kMatmul, x.rows);
  prepared.device_index = weight->device_index();
  prepared.weight = std::move(weight);
  return prepared;
}

absl::StatusOr<Prepared> RequestBuilder::NormQuant(
    const TensorRequest<v1::NormQuantRequest>& received,
    TensorReply<v1::NormQuantResponse>* reply) const {
  const v1::NormQuantRequest& request = received.fields;
  NIBBLE_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  auto job = std::make_shared<Job>();
  NIBBLE_ASSIGN_OR_RETURN(
      const TensorInput input,
      memory_.Read(request.x(), received.data.Of(v1::NormQuantRequest::kXFieldNumber), "x", *job));
  const WireMatrix& x = input.matrix;
  NIBBLE_RETURN_IF_ERROR(CheckActivationType(x));
  NormQuantOptions options;
  options.d = x.cols;
  options.x = x.dtype;
  if (request.has_epsilon()) options.epsilon = request.epsilon();
  if (!std::isfinite(options.epsilon) || options.epsilon < 0) {
    return absl::InvalidArgumentError(fmt::format(
        "epsilon: expected a finite number of at least 0; received {}", options.epsilon));
  }
  NIBBLE_ASSIGN_OR_RETURN(const ParsedQuant quant, ParseOutputQuant(request.quant(), x.dtype));
  options.quant = quant.quant;
  options.y = quant.y;

  job->inputs.push_back(input.rows());
  if (request.has_residual()) {
    NIBBLE_ASSIGN_OR_RETURN(
        const TensorInput residual_input,
        memory_.Read(request.residual(),
                     received.data.Of(v1::NormQuantRequest::kResidualFieldNumber), "residual",
                     *job));
    const WireMatrix& residual = residual_input.matrix;
    if (residual.dtype != x.dtype || residual.rows != x.rows || residual.cols != x.cols) {
      return absl::InvalidArgumentError(fmt::format(
          "residual: expected {} [{}, {}] as x; received {} [{}, {}]", DTypeName(x.dtype), x.rows,
          x.cols, DTypeName(residual.dtype), residual.rows, residual.cols));
    }
    options.has_residual = true;
    job->inputs.push_back(residual_input.rows());
  }
  if (x.cols == 0) {
    return absl::InvalidArgumentError("x.shape: expected at least 1 column; received 0");
  }

  WeightHandle resident;
  KeyedOperation operation;
  switch (request.gamma_case()) {
    case v1::NormQuantRequest::kGammaWeight: {
      NIBBLE_ASSIGN_OR_RETURN(resident, store_.Acquire(request.gamma_weight()));
      const WeightSpec& spec = resident->weight().spec();
      if (spec.format != Format::kDense || spec.n != 1 || spec.k != x.cols) {
        return absl::InvalidArgumentError(
            fmt::format("gamma_weight: expected a dense vector of {} elements; '{}' is {}", x.cols,
                        request.gamma_weight(), ToString(spec)));
      }
      operation = MakeNormQuant(resident, options);
      break;
    }
    case v1::NormQuantRequest::kGammaInline: {
      const ByteSpans inline_data(std::as_bytes(std::span(request.gamma_inline().data())));
      NIBBLE_ASSIGN_OR_RETURN(
          const TensorInput gamma_input,
          memory_.Read(request.gamma_inline(), inline_data, "gamma_inline", *job));
      const WireMatrix& gamma = gamma_input.matrix;
      if (!IsFloat16Or32(gamma.dtype) || gamma.rows != 1 || gamma.cols != x.cols) {
        return absl::InvalidArgumentError(
            fmt::format("gamma_inline: expected F32, F16 or BF16 [{}]; received {} [{}, {}]",
                        x.cols, DTypeName(gamma.dtype), gamma.rows, gamma.cols));
      }
      std::string copied(gamma_input.data.size(), '\0');
      gamma_input.data.CopyTo(0, copied.size(), reinterpret_cast<std::byte*>(copied.data()));
      operation = MakeNormQuant(std::move(copied), gamma.dtype, options);
      break;
    }
    default:
      return absl::InvalidArgumentError(
          "gamma: expected gamma_weight or gamma_inline; received neither");
  }

  NIBBLE_RETURN_IF_ERROR(AddQuantized(memory_, request, x.rows, x.cols, quant, reply, *job));
  if (options.has_residual) {
    NIBBLE_RETURN_IF_ERROR(
        memory_.AddResult({v1::NormQuantResponse::kResidualFieldNumber, "residual", request.x(),
                           x.rows, x.cols, x.dtype},
                          request.has_residual_memory() ? &request.residual_memory() : nullptr,
                          "residual_memory", *job, reply->tensors));
  }
  reply->fields.set_request_id(request.request_id());
  Prepared prepared = Finish(std::move(operation), std::move(job), Op::kNormQuant, x.rows);
  prepared.device_index =
      resident != nullptr ? resident->device_index() : engine_.LeastLoadedDevice();
  prepared.weight = std::move(resident);
  return prepared;
}

absl::StatusOr<Prepared> RequestBuilder::SiluMulQuant(
    const TensorRequest<v1::SiluMulQuantRequest>& received,
    TensorReply<v1::SiluMulQuantResponse>* reply) const {
  const v1::SiluMulQuantRequest& request = received.fields;
  NIBBLE_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  auto job = std::make_shared<Job>();
  NIBBLE_ASSIGN_OR_RETURN(
      const TensorInput input,
      memory_.Read(request.x(), received.data.Of(v1::SiluMulQuantRequest::kXFieldNumber), "x",
                   *job));
  const WireMatrix& x = input.matrix;
  NIBBLE_RETURN_IF_ERROR(CheckActivationType(x));
  if (x.cols == 0 || x.cols % 2 != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "x.shape: expected an even last dimension, 2d with d >= 1; received {}", x.cols));
  }
  NIBBLE_ASSIGN_OR_RETURN(const ParsedQuant quant, ParseOutputQuant(request.quant(), x.dtype));
  SiluMulQuantOptions options;
  options.d = x.cols / 2;
  options.x = x.dtype;
  options.quant = quant.quant;
  options.y = quant.y;
  job->inputs.push_back(input.rows());
  NIBBLE_RETURN_IF_ERROR(AddQuantized(memory_, request, x.rows, options.d, quant, reply, *job));
  reply->fields.set_request_id(request.request_id());
  Prepared prepared = Finish(MakeSiluMulQuant(options), std::move(job), Op::kSiluMulQuant, x.rows);
  prepared.device_index = engine_.LeastLoadedDevice();
  return prepared;
}

absl::StatusOr<RequestBuilder::DequantizeRange> RequestBuilder::ParseDequantize(
    const v1::DequantizeRequest& request) const {
  DequantizeRange range;
  NIBBLE_ASSIGN_OR_RETURN(range.weight, store_.Acquire(request.weight()));
  const WeightSpec& spec = range.weight->weight().spec();
  NIBBLE_ASSIGN_OR_RETURN(
      range.dtype,
      ParseDType(request.dtype(), spec.dtype, {DType::kF32, DType::kF16, DType::kBF16}, "dtype"));
  const int64_t begin = request.row_begin();
  const int64_t count = request.row_count();
  if (begin < 0 || begin > spec.n || count < 0 || count > spec.n - begin) {
    return absl::InvalidArgumentError(fmt::format(
        "row_begin, row_count: expected a range within the {} rows of '{}'; received {} and {}",
        spec.n, request.weight(), begin, count));
  }
  if (request.max_chunk_bytes() < 0) {
    return absl::InvalidArgumentError(fmt::format(
        "max_chunk_bytes: expected at least 0; received {}", request.max_chunk_bytes()));
  }
  range.row_begin = begin;
  range.row_end = count == 0 ? spec.n : begin + count;
  const int64_t chunk_bytes = request.max_chunk_bytes() == 0
                                  ? kMaxDequantizeChunkBytes
                                  : std::min(request.max_chunk_bytes(), kMaxDequantizeChunkBytes);
  const int64_t row_bytes = spec.k * static_cast<int64_t>(DTypeBytes(range.dtype));
  range.rows_per_chunk = std::max<int64_t>(1, chunk_bytes / row_bytes);
  return range;
}

absl::StatusOr<Prepared> RequestBuilder::DequantizeChunk(
    const DequantizeRange& range, int64_t row_begin,
    TensorReply<v1::DequantizeResponse>* reply) const {
  const int64_t rows = std::min(range.rows_per_chunk, range.row_end - row_begin);
  v1::Tensor like;
  like.add_shape(rows);
  like.add_shape(0);
  auto job = std::make_shared<Job>();
  NIBBLE_RETURN_IF_ERROR(memory_.AddResult({v1::DequantizeResponse::kRowsFieldNumber, "rows", like,
                                            rows, range.weight->weight().spec().k, range.dtype},
                                           nullptr, "", *job, reply->tensors));
  reply->fields.set_row_begin(row_begin);
  Prepared prepared = Finish(MakeDequantize(range.weight, row_begin, range.dtype), std::move(job),
                             Op::kDequantize, rows);
  prepared.device_index = range.weight->device_index();
  prepared.weight = range.weight;
  return prepared;
}

}  // namespace nibble::server
