#include "server/service/format_codec.h"

#include <string>
#include <vector>

#include "fmt/format.h"
#include "nibble/status.h"

namespace nibble::server {
namespace {

v1::WeightFormat ToWire(Format format) {
  switch (format) {
    case Format::kDense:
      return v1::WEIGHT_FORMAT_DENSE;
    case Format::kNF4:
      return v1::WEIGHT_FORMAT_NF4;
    case Format::kFP4:
      return v1::WEIGHT_FORMAT_FP4;
    case Format::kInt4:
      return v1::WEIGHT_FORMAT_INT4;
    case Format::kFP8:
      return v1::WEIGHT_FORMAT_FP8;
  }
  return v1::WEIGHT_FORMAT_UNSPECIFIED;
}

v1::ScaleLayout ToWire(ScaleLayout layout) {
  switch (layout) {
    case ScaleLayout::kTensor:
      return v1::SCALE_LAYOUT_TENSOR;
    case ScaleLayout::kChannel:
      return v1::SCALE_LAYOUT_CHANNEL;
    case ScaleLayout::kBlock:
      return v1::SCALE_LAYOUT_BLOCK;
  }
  return v1::SCALE_LAYOUT_UNSPECIFIED;
}

v1::WeightState ToWire(WeightState state) {
  switch (state) {
    case WeightState::kLoading:
      return v1::WEIGHT_STATE_LOADING;
    case WeightState::kReady:
      return v1::WEIGHT_STATE_READY;
    case WeightState::kDraining:
      return v1::WEIGHT_STATE_DRAINING;
    case WeightState::kFailed:
      return v1::WEIGHT_STATE_FAILED;
  }
  return v1::WEIGHT_STATE_UNSPECIFIED;
}

// What `format` says of any weight: n and k are not set, and a group may be kWholeColumn.
absl::StatusOr<WeightSpec> ParseParameters(const v1::FormatSpec& format, std::string_view field) {
  WeightSpec spec;
  switch (format.format()) {
    case v1::WEIGHT_FORMAT_DENSE:
      spec.format = Format::kDense;
      break;
    case v1::WEIGHT_FORMAT_NF4:
      spec.format = Format::kNF4;
      break;
    case v1::WEIGHT_FORMAT_FP4:
      spec.format = Format::kFP4;
      break;
    case v1::WEIGHT_FORMAT_INT4:
      spec.format = Format::kInt4;
      break;
    case v1::WEIGHT_FORMAT_FP8:
      spec.format = Format::kFP8;
      break;
    default:
      return absl::InvalidArgumentError(
          fmt::format("{}.format: expected DENSE, NF4, FP4, INT4 or FP8; received {}", field,
                      static_cast<int>(format.format())));
  }
  if (format.block_size() != 0) spec.block_size = format.block_size();
  spec.nested = format.nested();
  if (spec.format == Format::kInt4) {
    if (format.group_size() != 0) spec.group_size = format.group_size();
    if (format.group_size() == -1) spec.group_size = kWholeColumn;
    spec.has_zero_points = format.zero_points();
  }
  switch (format.scale_layout()) {
    case v1::SCALE_LAYOUT_UNSPECIFIED:
    case v1::SCALE_LAYOUT_TENSOR:
      spec.scale_layout = ScaleLayout::kTensor;
      break;
    case v1::SCALE_LAYOUT_CHANNEL:
      spec.scale_layout = ScaleLayout::kChannel;
      break;
    case v1::SCALE_LAYOUT_BLOCK:
      spec.scale_layout = ScaleLayout::kBlock;
      break;
    default:
      return absl::InvalidArgumentError(
          fmt::format("{}.scale_layout: expected TENSOR, CHANNEL or BLOCK; received {}", field,
                      static_cast<int>(format.scale_layout())));
  }
  return spec;
}

constexpr int kMaxPatterns = 256;
constexpr size_t kMaxPatternBytes = 256;
absl::StatusOr<std::vector<std::string>> ParsePatterns(
    const google::protobuf::RepeatedPtrField<std::string>& patterns, std::string_view field) {
  if (patterns.size() > kMaxPatterns) {
    return absl::InvalidArgumentError(fmt::format("{}: expected at most {} patterns; received {}",
                                                  field, kMaxPatterns, patterns.size()));
  }
  for (const std::string& pattern : patterns) {
    if (pattern.empty() || pattern.size() > kMaxPatternBytes) {
      return absl::InvalidArgumentError(
          fmt::format("{}: expected patterns of 1 to {} bytes; received one of {}", field,
                      kMaxPatternBytes, pattern.size()));
    }
  }
  return std::vector<std::string>(patterns.begin(), patterns.end());
}

}  // namespace

absl::StatusOr<checkpoint::QuantizePlan> ParseQuantization(const v1::Quantization& quantize,
                                                           std::string_view field) {
  checkpoint::QuantizePlan plan;
  NIBBLE_ASSIGN_OR_RETURN(plan.target.spec,
                          ParseParameters(quantize.format(), fmt::format("{}.format", field)));
  if (plan.target.spec.format == Format::kDense) {
    return absl::InvalidArgumentError(
        fmt::format("{}.format.format: expected NF4, FP4, INT4 or FP8; received DENSE", field));
  }
  NIBBLE_RETURN_IF_ERROR(GeometryOf(SpecFor(plan.target, 1, 1, DType::kBF16)).status());
  plan.target.options.search_scale = quantize.format().search_scale();
  NIBBLE_ASSIGN_OR_RETURN(plan.filter.include,
                          ParsePatterns(quantize.include(), fmt::format("{}.include", field)));
  NIBBLE_ASSIGN_OR_RETURN(plan.filter.exclude,
                          ParsePatterns(quantize.exclude(), fmt::format("{}.exclude", field)));
  return plan;
}

absl::StatusOr<WeightSpec> ParseFormat(const v1::FormatSpec& format, int64_t n, int64_t k,
                                       std::string_view field) {
  QuantizeTarget target;
  NIBBLE_ASSIGN_OR_RETURN(target.spec, ParseParameters(format, field));
  const WeightSpec spec = SpecFor(target, n, k, target.spec.dtype);
  NIBBLE_RETURN_IF_ERROR(GeometryOf(spec).status());
  return spec;
}

absl::StatusOr<checkpoint::OpenOptions> ParseOpenOptions(
    v1::Fuse fuse, const google::protobuf::RepeatedPtrField<std::string>& layers) {
  constexpr int kMaxLayerPatterns = 1024;
  checkpoint::OpenOptions options;
  switch (fuse) {
    case v1::FUSE_UNSPECIFIED:
      break;
    case v1::FUSE_REQUIRED:
      options.fusing = checkpoint::Fusing::kRequired;
      break;
    case v1::FUSE_WHERE_POSSIBLE:
      options.fusing = checkpoint::Fusing::kWherePossible;
      break;
    default:
      return absl::InvalidArgumentError(
          fmt::format("fuse: expected FUSE_REQUIRED or FUSE_WHERE_POSSIBLE; received {}",
                      static_cast<int>(fuse)));
  }
  if (layers.size() > kMaxLayerPatterns) {
    return absl::InvalidArgumentError(fmt::format(
        "layers: expected at most {} patterns; received {}", kMaxLayerPatterns, layers.size()));
  }
  options.layers.assign(layers.begin(), layers.end());
  return options;
}

void ToWire(const WeightSpec& spec, v1::FormatSpec* format) {
  format->set_format(ToWire(spec.format));
  switch (spec.format) {
    case Format::kDense:
      break;
    case Format::kNF4:
    case Format::kFP4:
      format->set_block_size(spec.block_size);
      format->set_nested(spec.nested);
      break;
    case Format::kInt4:
      format->set_group_size(spec.group_size);
      format->set_zero_points(spec.has_zero_points);
      format->set_act_order(spec.has_group_index);
      break;
    case Format::kFP8:
      format->set_scale_layout(ToWire(spec.scale_layout));
      break;
  }
}

void ToWire(const WeightInfo& info, std::string_view device_id, v1::WeightSummary* summary) {
  summary->set_name(info.name);
  summary->set_version(info.version);
  summary->set_state(ToWire(info.state));
  ToWire(info.spec, summary->mutable_format());
  summary->set_n(info.spec.n);
  summary->set_k(info.spec.k);
  summary->set_device_bytes(static_cast<int64_t>(info.device_bytes));
  summary->set_device(std::string(device_id));
  summary->set_error(info.error);
}

void ToWire(const MatmulKey& key, const DeviceInfo& device, const MeasuredMatmul* measured,
            int64_t max_m, google::protobuf::RepeatedPtrField<v1::KernelChoice>* choices) {
  const v1::KernelSource unmeasured =
      SelectsByRoofline(device) ? v1::KERNEL_SOURCE_PREDICTED : v1::KERNEL_SOURCE_TABLE;
  for (const ChoiceRange& range : ExplainMatmul(key, device, measured, max_m)) {
    v1::KernelChoice* choice = choices->Add();
    choice->set_m_begin(range.m_begin);
    choice->set_m_end(range.m_end);
    choice->set_kernel(std::string(range.choice.kernel));
    choice->set_tile_m(range.choice.tile_m);
    choice->set_tile_n(range.choice.tile_n);
    choice->set_tile_k(range.choice.tile_k);
    choice->set_split_k(range.choice.split_k);
    choice->set_source(range.measured ? v1::KERNEL_SOURCE_MEASURED : unmeasured);
    const auto predicted_us = [&](int64_t m) {
      return PredictMicroseconds(ProblemOf(key, m), range.choice.kernel, device);
    };
    choice->set_predicted_begin_us(predicted_us(range.m_begin));
    choice->set_predicted_end_us(predicted_us(range.m_end));
    if (measured == nullptr) continue;
    for (const MeasuredRows& rows : measured->rows) {
      const double us = TimeOf(rows, range.choice.kernel);
      if (rows.m == range.m_begin) choice->set_measured_begin_us(us);
      if (rows.m == range.m_end) choice->set_measured_end_us(us);
    }
  }
}

void ToWire(const MeasuredMatmul& measured,
            google::protobuf::RepeatedPtrField<v1::MeasuredRows>* rows) {
  for (const MeasuredRows& at : measured.rows) {
    v1::MeasuredRows* to = rows->Add();
    to->set_m(at.m);
    for (const MeasuredTime& time : at.times) {
      v1::MeasuredTime* one = to->add_times();
      one->set_kernel(std::string(time.kernel));
      one->set_us(time.microseconds);
    }
  }
}

}  // namespace nibble::server
