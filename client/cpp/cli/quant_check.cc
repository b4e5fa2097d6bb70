#include "client/cpp/cli/quant_check.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <span>

#include "fmt/format.h"
#include "nibble/client_tensor.h"

namespace nibble::cli {
namespace {

using client::RoundTo;

constexpr int64_t kGroup = 128;
constexpr float kSmallestScale = 0x1p-100f;
constexpr double kScaleTolerance = 1e-6;
constexpr double kCodeShare = 1e-3;
constexpr double kValueShare = 1e-2;
constexpr double kF32Tolerance = 1e-5;
// A step of the first rounding, in steps of v.
constexpr int kValueSteps = 2;

float Top(v1::DType code) { return code == v1::DTYPE_I8 ? 127.0f : 448.0f; }

int64_t GroupOf(v1::QuantMode mode, int64_t cols) {
  return mode == v1::QUANT_MODE_PER_GROUP ? kGroup : std::max<int64_t>(cols, 1);
}

// The place of an element in the order of all values of its type; neighbours are one apart, and -0
// and +0 the same.
int64_t Ordinal(const void* element, v1::DType dtype) {
  const int64_t size = client::DTypeBytes(dtype);
  uint32_t word = 0;
  std::memcpy(&word, element, static_cast<size_t>(size));
  if (dtype == v1::DTYPE_I8) return static_cast<int8_t>(word);
  const uint32_t sign = 1u << (8 * size - 1);
  const auto magnitude = static_cast<int64_t>(word & (sign - 1));
  return (word & sign) != 0 ? -magnitude : magnitude;
}

absl::StatusOr<Rounded> FromTensor(const v1::Tensor& tensor) {
  absl::StatusOr<std::vector<float>> values = client::FloatsFromTensor(tensor);
  if (!values.ok()) return values.status();
  const Extent extent = ExtentOf(tensor);
  return Rounded{extent.rows, extent.cols, tensor.dtype(), *std::move(values)};
}

float AbsoluteMaximum(std::span<const float> values) {
  float amax = 0.0f;
  for (const float value : values) amax = std::max(amax, std::fabs(value));
  return amax;
}

// Compares one group of a row at a time.
class Comparer {
 public:
  Comparer(const Rounded& v, v1::DType code, QuantReport& report)
      : v_(v), code_(code), report_(report) {}

  // The scale to go on with: the received one where it may be right.
  float CheckScale(int64_t row, int64_t group, std::span<const float> values, float received) {
    const float amax = AbsoluteMaximum(values);
    const float expected = DynamicScale(amax, code_);
    const auto agrees = [&](float scale) {
      return std::fabs(static_cast<double>(received) - scale) <= kScaleTolerance * scale;
    };
    ++report_.scales;
    if (agrees(expected)) {
      report_.worst_scale_error =
          std::max(report_.worst_scale_error, std::fabs(static_cast<double>(received) - expected) /
                                                  static_cast<double>(expected));
      return received;
    }
    for (int steps = 1; steps <= kValueSteps; ++steps) {
      if (agrees(DynamicScale(Step(amax, steps), code_)) ||
          agrees(DynamicScale(Step(amax, -steps), code_))) {
        ++report_.scales_one_step;
        return received;
      }
    }
    ++report_.scales_wrong;
    NoteWrong(fmt::format("scale of row {}, group {}: expected {:.9g}, received {:.9g}", row, group,
                          expected, received));
    return expected;
  }

  void CheckCode(int64_t row, int64_t col, float value, float scale, const void* received) {
    uint32_t expected = 0;
    client::EncodeElement(value / scale, code_, &expected);
    CompareElements(row, col, &expected, received, 1);
  }

  void CheckValue(int64_t row, int64_t col, float value, const void* received) {
    if (code_ != v1::DTYPE_F32) {
      uint32_t expected = 0;
      client::EncodeElement(value, code_, &expected);
      CompareElements(row, col, &expected, received, kValueSteps);
      return;
    }
    ++report_.compared;
    const float got = client::DecodeElement(received, code_);
    if (std::fabs(static_cast<double>(got) - value) <= kF32Tolerance * std::fabs(value)) return;
    ++report_.wrong;
    NoteWrong(
        fmt::format("row {}, column {}: expected {:.9g}, received {:.9g}", row, col, value, got));
  }

 private:
  // The value of v's type that is `steps` above `value`.
  float Step(float value, int steps) const {
    uint32_t bits = 0;
    client::EncodeElement(value, v_.dtype, &bits);
    const int64_t moved = std::max<int64_t>(static_cast<int64_t>(bits) + steps, 0);
    bits = static_cast<uint32_t>(moved);
    return client::DecodeElement(&bits, v_.dtype);
  }

  void CompareElements(int64_t row, int64_t col, const void* expected, const void* received,
                       int64_t beside) {
    ++report_.compared;
    const int64_t distance = std::llabs(Ordinal(expected, code_) - Ordinal(received, code_));
    // The codes of NaN lie beside that of the largest value.
    const bool nan = std::isnan(client::DecodeElement(received, code_));
    if (distance == 0 && !nan) return;
    if (distance <= beside && !nan) {
      ++report_.one_step;
      return;
    }
    ++report_.wrong;
    NoteWrong(fmt::format("row {}, column {}: expected {:.9g}, received {:.9g}", row, col,
                          client::DecodeElement(expected, code_),
                          client::DecodeElement(received, code_)));
  }

  void NoteWrong(std::string text) {
    if (report_.first_wrong.empty()) report_.first_wrong = std::move(text);
  }

  const Rounded& v_;
  v1::DType code_;
  QuantReport& report_;
};

absl::Status CheckShape(const char* field, const v1::Tensor& tensor, v1::DType dtype, int64_t rows,
                        int64_t cols) {
  const Extent extent = ExtentOf(tensor);
  const int64_t bytes = rows * cols * client::DTypeBytes(dtype);
  if (tensor.dtype() == dtype && extent.rows == rows && extent.cols == cols &&
      static_cast<int64_t>(tensor.data().size()) == bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("{}: expected {} [{}, {}], received {} [{}, {}] of {} bytes", field,
                  client::DTypeName(dtype), rows, cols, client::DTypeName(tensor.dtype()),
                  extent.rows, extent.cols, tensor.data().size()));
}

}  // namespace

float DynamicScale(float amax, v1::DType code) {
  return std::max(amax / Top(code), kSmallestScale);
}

absl::StatusOr<NormReference> ReferenceNorm(const v1::Tensor& x, const v1::Tensor* residual,
                                            const std::vector<float>& gamma, float epsilon) {
  absl::StatusOr<Rounded> h = FromTensor(x);
  if (!h.ok()) return h.status();
  if (static_cast<int64_t>(gamma.size()) != h->cols) {
    return absl::InvalidArgumentError(
        fmt::format("gamma: expected {} values, received {}", h->cols, gamma.size()));
  }
  if (residual != nullptr) {
    const absl::StatusOr<Rounded> added = FromTensor(*residual);
    if (!added.ok()) return added.status();
    if (added->values.size() != h->values.size()) {
      return absl::InvalidArgumentError(fmt::format("residual: expected {} values, received {}",
                                                    h->values.size(), added->values.size()));
    }
    for (size_t i = 0; i < h->values.size(); ++i) {
      h->values[i] = RoundTo(h->dtype, h->values[i] + added->values[i]);
    }
  }
  Rounded v = *h;
  for (int64_t row = 0; row < h->rows; ++row) {
    float* values = v.values.data() + row * h->cols;
    double sum = 0.0;
    for (int64_t i = 0; i < h->cols; ++i) sum += static_cast<double>(values[i]) * values[i];
    const double mean = sum / static_cast<double>(h->cols);
    const auto inverse = static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(epsilon)));
    for (int64_t i = 0; i < h->cols; ++i) {
      const float t = RoundTo(h->dtype, values[i] * inverse);
      values[i] = RoundTo(h->dtype, t * gamma[static_cast<size_t>(i)]);
    }
  }
  return NormReference{*std::move(h), std::move(v)};
}

absl::StatusOr<Rounded> ReferenceSiluMul(const v1::Tensor& x) {
  const absl::StatusOr<Rounded> input = FromTensor(x);
  if (!input.ok()) return input.status();
  if (input->cols % 2 != 0) {
    return absl::InvalidArgumentError(
        fmt::format("x: expected an even number of columns, received {}", input->cols));
  }
  const int64_t d = input->cols / 2;
  Rounded v{input->rows, d, input->dtype, {}};
  v.values.reserve(static_cast<size_t>(input->rows * d));
  for (int64_t row = 0; row < input->rows; ++row) {
    const float* gate = input->values.data() + row * input->cols;
    for (int64_t i = 0; i < d; ++i) {
      const double g = gate[i];
      const float t = RoundTo(v.dtype, static_cast<float>(g / (1.0 + std::exp(-g))));
      v.values.push_back(RoundTo(v.dtype, t * gate[d + i]));
    }
  }
  return v;
}

Matrix QuantizedActivations(const Matrix& x, v1::QuantMode mode, float static_scale) {
  Matrix used = x;
  if (mode == v1::QUANT_MODE_NONE) return used;
  const int64_t group = GroupOf(mode, x.cols);
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t begin = 0; begin < x.cols; begin += group) {
      const int64_t end = std::min(begin + group, x.cols);
      double* values = used.values.data() + row * x.cols;
      float amax = 0.0f;
      for (int64_t i = begin; i < end; ++i) {
        amax = std::max(amax, static_cast<float>(std::fabs(values[i])));
      }
      const float scale =
          mode == v1::QUANT_MODE_STATIC ? static_scale : DynamicScale(amax, v1::DTYPE_F8_E4M3);
      for (int64_t i = begin; i < end; ++i) {
        const float code = RoundTo(v1::DTYPE_F8_E4M3, static_cast<float>(values[i]) / scale);
        values[i] = static_cast<double>(code) * scale;
      }
    }
  }
  return used;
}

absl::StatusOr<QuantReport> CheckQuantized(const Rounded& v, const v1::OutputQuant& quant,
                                           const v1::Tensor& y, const v1::Tensor& scales) {
  const bool plain = quant.mode() == v1::QUANT_MODE_NONE;
  const v1::DType code =
      plain ? v.dtype
            : (quant.dtype() == v1::DTYPE_UNSPECIFIED ? v1::DTYPE_F8_E4M3 : quant.dtype());
  if (absl::Status s = CheckShape("y", y, code, v.rows, v.cols); !s.ok()) return s;
  const bool dynamic = !plain && quant.mode() != v1::QUANT_MODE_STATIC;
  const int64_t group = GroupOf(quant.mode(), v.cols);
  const int64_t groups = (v.cols + group - 1) / group;
  std::vector<float> received_scales;
  if (dynamic) {
    if (absl::Status s = CheckShape("scales", scales, v1::DTYPE_F32, v.rows, groups); !s.ok()) {
      return s;
    }
    received_scales = client::FloatsFromTensor(scales).value();
  } else if (!scales.data().empty()) {
    return absl::InvalidArgumentError("scales: expected none in this mode, received some");
  }
  QuantReport report;
  report.rows = v.rows;
  Comparer comparer(v, code, report);
  const auto size = static_cast<size_t>(client::DTypeBytes(code));
  for (int64_t row = 0; row < v.rows; ++row) {
    const std::span<const float> values(v.values.data() + row * v.cols,
                                        static_cast<size_t>(v.cols));
    if (!std::all_of(values.begin(), values.end(), [](float f) { return std::isfinite(f); })) {
      ++report.rows_left_out;
      continue;
    }
    for (int64_t begin = 0; begin < v.cols; begin += group) {
      const int64_t end = std::min(begin + group, v.cols);
      float scale = quant.static_scale();
      if (dynamic) {
        const int64_t index = begin / group;
        scale = comparer.CheckScale(
            row, index,
            values.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
            received_scales[static_cast<size_t>(row * groups + index)]);
      }
      for (int64_t col = begin; col < end; ++col) {
        const char* received = y.data().data() + static_cast<size_t>(row * v.cols + col) * size;
        const float value = values[static_cast<size_t>(col)];
        if (plain) {
          comparer.CheckValue(row, col, value, received);
        } else {
          comparer.CheckCode(row, col, value, scale, received);
        }
      }
    }
  }
  const double share = plain ? kValueShare : kCodeShare;
  report.allowed =
      std::max<int64_t>(1, static_cast<int64_t>(share * static_cast<double>(report.compared)));
  return report;
}

bool QuantReport::ok() const {
  const int64_t scales_allowed =
      std::max<int64_t>(1, static_cast<int64_t>(kCodeShare * static_cast<double>(scales)));
  return (compared > 0 || rows == 0) && wrong == 0 && scales_wrong == 0 && one_step <= allowed &&
         scales_one_step <= scales_allowed;
}

std::string QuantReport::Text() const {
  std::string text = fmt::format("{} elements: {} wrong, {} beside ({} allowed)", compared, wrong,
                                 one_step, allowed);
  if (scales > 0) {
    text += fmt::format("; {} scales: {} wrong, {} beside, the others within {:.2g}", scales,
                        scales_wrong, scales_one_step, worst_scale_error);
  }
  if (rows_left_out > 0) text += fmt::format("; {} rows not finite, not checked", rows_left_out);
  if (!first_wrong.empty()) text += "; first wrong: " + first_wrong;
  return text;
}

Json QuantReport::ToJson() const {
  Json json = {{"ok", ok()},
               {"compared", compared},
               {"wrong", wrong},
               {"one_step", one_step},
               {"one_step_allowed", allowed},
               {"scales", scales},
               {"scales_wrong", scales_wrong},
               {"scales_one_step", scales_one_step},
               {"worst_scale_error", worst_scale_error},
               {"rows_left_out", rows_left_out}};
  if (!first_wrong.empty()) json["first_wrong"] = first_wrong;
  return json;
}

}  // namespace nibble::cli
