#include "client/cpp/load/answer_check.h"

#include <array>
#include <cmath>

#include "client/cpp/cli/quant_check.h"
#include "client/cpp/cli/tolerance.h"
#include "fmt/format.h"

namespace nibble::load {
namespace {

constexpr auto kRows = static_cast<size_t>(Workload::kDistinctRows);

// The distinct rows as the product sees them, transposed: [K, kDistinctRows].
struct Inputs {
  std::vector<double> by_column;
  std::array<double, kRows> norms{};
};

absl::StatusOr<Inputs> InputsOf(const Workload& workload, const Layer& layer,
                                client::Client& client) {
  const Activations& activations = workload.all_activations().at(layer.k);
  cli::Matrix x{
      Workload::kDistinctRows, layer.k, {activations.distinct.begin(), activations.distinct.end()}};
  if (const v1::QuantMode mode = workload.options().activation_quant; mode != v1::QUANT_MODE_NONE) {
    float static_scale = 0.0f;
    if (mode == v1::QUANT_MODE_STATIC) {
      v1::DescribeRequest describe;
      describe.set_name(layer.name);
      const auto described = client.Describe(describe);
      if (!described.ok()) return described.status();
      static_scale = described->input_scale();
    }
    x = cli::QuantizedActivations(x, mode, static_scale);
  }
  Inputs inputs;
  inputs.by_column.resize(x.values.size());
  for (size_t row = 0; row < kRows; ++row) {
    double square = 0.0;
    for (int64_t i = 0; i < layer.k; ++i) {
      const double value = x.at(static_cast<int64_t>(row), i);
      inputs.by_column[static_cast<size_t>(i) * kRows + row] = value;
      square += value * value;
    }
    inputs.norms[row] = std::sqrt(square);
  }
  return inputs;
}

// The layer's bias [N]: its product with zeros. Only where there is one, since a constant error
// would pass for it.
absl::StatusOr<std::vector<float>> BiasOf(const Workload& workload, const Layer& layer,
                                          client::Client& client) {
  v1::DescribeRequest describe;
  describe.set_name(layer.name);
  const auto described = client.Describe(describe);
  if (described.ok() && !described->has_bias()) {
    return std::vector<float>(static_cast<size_t>(layer.n));
  }
  v1::MatmulRequest request;
  request.set_weight(layer.name);
  request.set_output_dtype(v1::DTYPE_F32);
  v1::Tensor& x = *request.mutable_x();
  x.set_dtype(workload.options().dtype);
  x.add_shape(1);
  x.add_shape(layer.k);
  x.mutable_data()->assign(
      static_cast<size_t>(layer.k * client::DTypeBytes(workload.options().dtype)), '\0');
  const auto reply = client.Matmul(request);
  if (!reply.ok()) return reply.status();
  absl::StatusOr<std::vector<float>> bias = client::FloatsFromTensor(reply->y());
  if (bias.ok() && static_cast<int64_t>(bias->size()) != layer.n) {
    return absl::InternalError(
        fmt::format("{}: expected {} outputs, received {}", layer.name, layer.n, bias->size()));
  }
  return bias;
}

}  // namespace

absl::StatusOr<AnswerCheck> AnswerCheck::Create(const Workload& workload, client::Client& client) {
  AnswerCheck check(workload);
  for (size_t i = 0; i < workload.layers().size(); ++i) {
    absl::StatusOr<LayerAnswers> answers = AnswersOf(workload, i, client);
    if (!answers.ok()) return answers.status();
    check.layers_.push_back(*std::move(answers));
  }
  return check;
}

absl::StatusOr<AnswerCheck::LayerAnswers> AnswerCheck::AnswersOf(const Workload& workload,
                                                                 size_t index,
                                                                 client::Client& client) {
  const Layer& layer = workload.layers()[index];
  const absl::StatusOr<Inputs> inputs = InputsOf(workload, layer, client);
  if (!inputs.ok()) return inputs.status();
  const absl::StatusOr<std::vector<float>> bias = BiasOf(workload, layer, client);
  if (!bias.ok()) return bias.status();
  // The CPU backend uses decoded weights as they are; the others may round them once to BF16.
  const double weight_roundoff = layer.device.starts_with("cpu") ? 0.0 : cli::kBF16WeightRoundoff;

  LayerAnswers answers;
  const auto n = static_cast<size_t>(layer.n);
  const auto k = static_cast<size_t>(layer.k);
  answers.expected.resize(kRows * n);
  answers.tolerance.resize(kRows * n);
  size_t done = 0;
  const auto on_chunk = [&](const v1::DequantizeResponse& chunk) -> absl::Status {
    const absl::StatusOr<std::vector<float>> rows = client::FloatsFromTensor(chunk.rows());
    if (!rows.ok()) return rows.status();
    if (rows->size() % k != 0 || done + rows->size() / k > n ||
        chunk.row_begin() != static_cast<int64_t>(done)) {
      return absl::InternalError(fmt::format("{}: decoded rows are not those of [{}, {}] in order",
                                             layer.name, layer.n, layer.k));
    }
    for (size_t at = 0; at < rows->size(); at += k, ++done) {
      std::array<double, kRows> sums{};
      double square = 0.0;
      for (size_t i = 0; i < k; ++i) {
        const double w = (*rows)[at + i];
        square += w * w;
        const double* const x = inputs->by_column.data() + i * kRows;
        for (size_t row = 0; row < kRows; ++row) sums[row] += x[row] * w;
      }
      for (size_t row = 0; row < kRows; ++row) {
        const double expected = sums[row] + (*bias)[done];
        answers.expected[row * n + done] = expected;
        answers.tolerance[row * n + done] =
            cli::MatmulTolerance(layer.k, inputs->norms[row], std::sqrt(square), expected,
                                 workload.output_dtype(), weight_roundoff);
      }
    }
    return absl::OkStatus();
  };
  v1::DequantizeRequest request;
  request.set_weight(layer.name);
  request.set_dtype(v1::DTYPE_F32);
  if (absl::Status status = client.Dequantize(request, on_chunk); !status.ok()) return status;
  if (done != n) {
    return absl::InternalError(
        fmt::format("{}: expected {} decoded rows, received {}", layer.name, n, done));
  }
  return answers;
}

std::string AnswerCheck::Compare(const Draw& draw, const std::string& y) const {
  const LayerAnswers& answers = layers_[draw.layer];
  const Layer& layer = workload_->layers()[draw.layer];
  const v1::DType dtype = workload_->output_dtype();
  const auto n = static_cast<size_t>(layer.n);
  const auto element_bytes = static_cast<size_t>(client::DTypeBytes(dtype));
  if (y.size() != static_cast<size_t>(draw.rows) * n * element_bytes) {
    return fmt::format("{}: y has {} bytes", layer.name, y.size());
  }
  int64_t wrong = 0;
  double worst = 1.0;
  std::string text;
  const char* element = y.data();
  for (int64_t row = 0; row < draw.rows; ++row) {
    const auto from = static_cast<size_t>((draw.first_row + row) % Workload::kDistinctRows) * n;
    for (size_t col = 0; col < n; ++col, element += element_bytes) {
      const double received = client::DecodeElement(element, dtype);
      const double expected = answers.expected[from + col];
      const double tolerance = answers.tolerance[from + col];
      if (std::fabs(received - expected) <= tolerance) continue;
      const double ratio = cli::ErrorOverTolerance(expected, received, tolerance, dtype);
      if (ratio <= 1.0) continue;
      ++wrong;
      if (!(ratio > worst) && !text.empty()) continue;
      worst = ratio;
      text = fmt::format("row {}, column {}: expected {:.9g}, received {:.9g}, tolerance {:.3g}",
                         row, col, expected, received, tolerance);
    }
  }
  if (wrong == 0) return "";
  return fmt::format("{}: {} of {} elements out of tolerance; worst: {}", layer.name, wrong,
                     draw.rows * layer.n, text);
}

}  // namespace nibble::load
