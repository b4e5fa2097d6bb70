#include "client/cpp/load/workload.h"

#include <algorithm>
#include <limits>

#include "fmt/format.h"

namespace nibble::load {
namespace {

// Name, shape and framing of a request or a reply.
constexpr int64_t kEnvelopeBytes = 1024;

// The sizes of a layer, from one decoded row and one product.
absl::StatusOr<Layer> Probe(const std::string& name, const WorkloadOptions& options,
                            client::Client& client) {
  Layer layer;
  layer.name = name;
  v1::DequantizeRequest dequantize;
  dequantize.set_weight(name);
  dequantize.set_row_count(1);
  dequantize.set_dtype(v1::DTYPE_F32);
  const auto row = client.DequantizeAll(dequantize);
  if (!row.ok()) return row.status();
  if (row->shape_size() != 2 || row->shape(1) < 1) {
    return absl::InvalidArgumentError(
        fmt::format("--weight: {} is a vector; expected a matrix", name));
  }
  layer.k = row->shape(1);
  v1::MatmulRequest request;
  request.set_weight(name);
  request.set_output_dtype(options.output_dtype);
  request.set_activation_quant(options.activation_quant);
  v1::Tensor& x = *request.mutable_x();
  x.set_dtype(options.dtype);
  x.add_shape(1);
  x.add_shape(layer.k);
  x.mutable_data()->assign(static_cast<size_t>(layer.k * client::DTypeBytes(options.dtype)), '\0');
  const auto reply = client.Matmul(request);
  if (!reply.ok()) return reply.status();
  if (reply->y().shape_size() != 2 || reply->y().shape(1) < 1) {
    return absl::InternalError(fmt::format("{}: the server's y is not [1, N]", name));
  }
  layer.n = reply->y().shape(1);
  layer.device = reply->info().device();
  return layer;
}

absl::StatusOr<std::vector<std::string>> NamesOf(const WorkloadOptions& options,
                                                 client::Client& client) {
  std::vector<std::string> names = options.weights;
  if (options.pattern.empty()) return names;
  const auto list = client.List(v1::ListRequest());
  if (!list.ok()) return list.status();
  size_t vectors = 0;
  for (const v1::WeightSummary& weight : list->weights()) {
    if (weight.state() != v1::WEIGHT_STATE_READY) continue;
    if (!MatchesPattern(options.pattern, weight.name())) continue;
    if (weight.n() > 0 && weight.k() > 1) {
      names.push_back(weight.name());
    } else {
      ++vectors;
    }
  }
  if (names.empty()) {
    return absl::NotFoundError(fmt::format(
        "--weights: none of the {} weights of the server is a ready matrix that matches "
        "\"{}\" ({} vectors do)",
        list->weights_size(), options.pattern, vectors));
  }
  return names;
}

Activations MakeActivations(int64_t k, const WorkloadOptions& options) {
  Activations made;
  made.k = k;
  Random random(options.seed);
  std::normal_distribution<float> normal;
  const auto count = static_cast<size_t>(Workload::kDistinctRows * k);
  const auto element_bytes = static_cast<size_t>(client::DTypeBytes(options.dtype));
  made.distinct.resize(count);
  std::string once(count * element_bytes, '\0');
  for (size_t i = 0; i < count; ++i) {
    char* const element = once.data() + i * element_bytes;
    client::EncodeElement(normal(random), options.dtype, element);
    made.distinct[i] = client::DecodeElement(element, options.dtype);
  }
  const int64_t rows = options.rows.largest() + Workload::kDistinctRows - 1;
  const size_t needed = static_cast<size_t>(rows * k) * element_bytes;
  made.bytes.reserve(needed);
  while (made.bytes.size() < needed) {
    made.bytes.append(once, 0, std::min(once.size(), needed - made.bytes.size()));
  }
  return made;
}

}  // namespace

absl::StatusOr<Workload> Workload::Create(const WorkloadOptions& options, client::Client& client,
                                          int64_t max_message_bytes) {
  const absl::StatusOr<std::vector<std::string>> names = NamesOf(options, client);
  if (!names.ok()) return names.status();
  std::vector<Layer> layers;
  for (const std::string& name : *names) {
    absl::StatusOr<Layer> layer = Probe(name, options, client);
    if (!layer.ok()) return layer.status();
    layers.push_back(*std::move(layer));
  }
  return Create(options, std::move(layers), max_message_bytes);
}

absl::StatusOr<Workload> Workload::Create(const WorkloadOptions& options, std::vector<Layer> layers,
                                          int64_t max_message_bytes) {
  if (layers.empty()) return absl::InvalidArgumentError("--weight: expected at least one");
  Workload workload;
  workload.options_ = options;
  workload.layers_ = std::move(layers);
  const int64_t room = max_message_bytes - kEnvelopeBytes;
  for (const Layer& layer : workload.layers_) {
    for (const auto& [cols, dtype] :
         {std::pair(layer.k, options.dtype), std::pair(layer.n, workload.output_dtype())}) {
      if (cols > room / options.rows.largest() / client::DTypeBytes(dtype)) {
        return absl::InvalidArgumentError(fmt::format(
            "--rows: {} rows of {} {} values of {} are over --max-message-bytes {}",
            options.rows.largest(), cols, client::DTypeName(dtype), layer.name, max_message_bytes));
      }
    }
    if (!workload.activations_.contains(layer.k)) {
      workload.activations_.emplace(layer.k, MakeActivations(layer.k, options));
    }
  }
  return workload;
}

v1::DType Workload::output_dtype() const {
  return options_.output_dtype == v1::DTYPE_UNSPECIFIED ? options_.dtype : options_.output_dtype;
}

std::span<const char> Workload::InputOf(const Draw& draw) const {
  const Activations& from = activations(draw);
  const int64_t row_bytes = from.k * client::DTypeBytes(options_.dtype);
  return std::span(from.bytes)
      .subspan(static_cast<size_t>(draw.first_row * row_bytes),
               static_cast<size_t>(draw.rows * row_bytes));
}

int64_t Workload::OutputBytes(const Draw& draw) const {
  return draw.rows * layers_[draw.layer].n * client::DTypeBytes(output_dtype());
}

int64_t Workload::LargestOutputBytes() const {
  int64_t largest = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    largest = std::max(largest, OutputBytes({.layer = i, .rows = options_.rows.largest()}));
  }
  return largest;
}

Draw Workload::Next(Random& random) const {
  Draw draw;
  if (layers_.size() > 1) {
    draw.layer = std::uniform_int_distribution<size_t>(0, layers_.size() - 1)(random);
  }
  draw.rows = options_.rows.Draw(random);
  draw.first_row = std::uniform_int_distribution<int64_t>(0, kDistinctRows - 1)(random);
  return draw;
}

}  // namespace nibble::load
