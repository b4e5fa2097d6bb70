#include "server/autotune/cache_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <system_error>

#include "fmt/format.h"
#include "nibble/status.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/strict_json.h"
#include "server/executor/tuned_choices.h"

namespace nibble::server {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 1;
constexpr size_t kMaxFileBytes = size_t{16} << 20;
constexpr size_t kMaxDevices = 256;
constexpr size_t kMaxRowsOfKey = 256;
constexpr int64_t kMaxM = int64_t{1} << 20;
constexpr int64_t kMaxSize = int64_t{1} << 40;
constexpr double kMaxMicroseconds = 1e9;

constexpr std::array kDTypes = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kI8};
constexpr std::array kQuantModes = {QuantMode::kNone, QuantMode::kPerToken, QuantMode::kPerGroup,
                                    QuantMode::kStatic};
constexpr std::array kScaleLayouts = {ScaleLayout::kTensor, ScaleLayout::kChannel,
                                      ScaleLayout::kBlock};
constexpr std::array kKinds = {BackendKind::kCpu, BackendKind::kCuda};

std::string_view KindName(BackendKind kind) { return kind == BackendKind::kCpu ? "cpu" : "cuda"; }

// Reads the members of one object; the first fault stays, and later reads give defaults.
class Reader {
 public:
  Reader(const Json& object, std::string_view what, absl::Status& fault)
      : object_(object), what_(what), fault_(fault) {
    if (!object.is_object()) Fault("", "an object");
  }

  int64_t Int(std::string_view key, int64_t low, int64_t high) {
    const Json* value = Find(key);
    if (value != nullptr && value->is_number_integer() &&
        (!value->is_number_unsigned() ||
         value->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))) {
      const auto number = value->get<int64_t>();
      if (number >= low && number <= high) return number;
    }
    Fault(key, fmt::format("an integer from {} to {}", low, high));
    return low;
  }
  bool Bool(std::string_view key) {
    const Json* value = Find(key);
    if (value != nullptr && value->is_boolean()) return value->get<bool>();
    Fault(key, "true or false");
    return false;
  }
  std::string Text(std::string_view key) {
    const Json* value = Find(key);
    if (value != nullptr && value->is_string()) return value->get<std::string>();
    Fault(key, "a string");
    return "";
  }
  template <typename Values, typename NameOf>
  auto Named(std::string_view key, const Values& values, NameOf name_of) {
    const std::string text = Text(key);
    const auto found =
        std::ranges::find_if(values, [&](auto value) { return name_of(value) == text; });
    if (found != values.end()) return *found;
    Fault(key, "a known name");
    return values.front();
  }
  // Empty after a fault.
  const Json& Member(std::string_view key, Json::value_t type, size_t most) {
    static const Json kNone = Json::array();
    const Json* value = Find(key);
    if (value != nullptr && value->type() == type && value->size() <= most) return *value;
    Fault(key, fmt::format("{} of at most {}",
                           type == Json::value_t::array ? "an array" : "an object", most));
    return kNone;
  }
  void Fault(std::string_view key, std::string_view expected) {
    if (!fault_.ok()) return;
    fault_ = absl::InvalidArgumentError(
        fmt::format("{}{}{}: expected {}", what_, key.empty() ? "" : ".", key, expected));
  }

 private:
  const Json* Find(std::string_view key) const {
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }

  const Json& object_;
  const std::string_view what_;
  absl::Status& fault_;
};

Json SpecJson(const WeightSpec& spec) {
  return {{"format", FormatName(spec.format)},
          {"n", spec.n},
          {"k", spec.k},
          {"dtype", DTypeName(spec.dtype)},
          {"block_size", spec.block_size},
          {"nested", spec.nested},
          {"nested_block_size", spec.nested_block_size},
          {"group_size", spec.group_size},
          {"zero_points", spec.has_zero_points},
          {"group_index", spec.has_group_index},
          {"scale_dtype", DTypeName(spec.scale_dtype)},
          {"scale_layout", ScaleLayoutName(spec.scale_layout)},
          {"scale_block_n", spec.scale_block_n},
          {"scale_block_k", spec.scale_block_k},
          {"input_scale", spec.has_input_scale},
          {"bias", spec.has_bias},
          {"bias_dtype", DTypeName(spec.bias_dtype)}};
}

WeightSpec ParseSpec(const Json& json, absl::Status& fault) {
  Reader read(json, "weight", fault);
  WeightSpec spec;
  const StatusOr<Format> format = ParseFormat(read.Text("format"));
  if (!format.ok()) read.Fault("format", "a known name");
  if (format.ok()) spec.format = *format;
  spec.n = read.Int("n", 1, kMaxSize);
  spec.k = read.Int("k", 1, kMaxSize);
  spec.dtype = read.Named("dtype", kDTypes, DTypeName);
  spec.block_size = read.Int("block_size", 1, kMaxSize);
  spec.nested = read.Bool("nested");
  spec.nested_block_size = read.Int("nested_block_size", 1, kMaxSize);
  spec.group_size = read.Int("group_size", 1, std::numeric_limits<int64_t>::max());
  spec.has_zero_points = read.Bool("zero_points");
  spec.has_group_index = read.Bool("group_index");
  spec.scale_dtype = read.Named("scale_dtype", kDTypes, DTypeName);
  spec.scale_layout = read.Named("scale_layout", kScaleLayouts, ScaleLayoutName);
  spec.scale_block_n = read.Int("scale_block_n", 1, kMaxSize);
  spec.scale_block_k = read.Int("scale_block_k", 1, kMaxSize);
  spec.has_input_scale = read.Bool("input_scale");
  spec.has_bias = read.Bool("bias");
  spec.bias_dtype = read.Named("bias_dtype", kDTypes, DTypeName);
  if (fault.ok()) fault = GeometryOf(spec).status();
  return spec;
}

Json RowsJson(const std::vector<MeasuredRows>& rows) {
  Json json = Json::array();
  for (const MeasuredRows& at : rows) {
    Json us = Json::object();
    for (const MeasuredTime& time : at.times) us[std::string(time.kernel)] = time.microseconds;
    json.push_back({{"m", at.m}, {"us", us}});
  }
  return json;
}

std::vector<MeasuredRows> ParseRows(const Json& json, const std::vector<std::string_view>& kernels,
                                    absl::Status& fault) {
  std::vector<MeasuredRows> rows;
  for (const Json& element : json) {
    Reader read(element, "rows", fault);
    MeasuredRows at;
    at.m = read.Int("m", rows.empty() ? 1 : rows.back().m + 1, kMaxM);
    const Json& times = read.Member("us", Json::value_t::object, kernels.size());
    for (const auto& time : times.items()) {
      const auto kernel = std::ranges::find(kernels, time.key());
      if (kernel == kernels.end() || !time.value().is_number()) {
        read.Fault("us", "times of known kernels");
        break;
      }
      const auto us = time.value().get<double>();
      if (!(us > 0.0 && us <= kMaxMicroseconds)) read.Fault("us", "times above 0");
      at.times.push_back({*kernel, us});
    }
    if (!fault.ok()) break;
    rows.push_back(std::move(at));
  }
  return rows;
}

TuningCache::Section ParseSection(const Json& json, absl::Status& fault) {
  Reader read(json, "device", fault);
  TuningCache::Section section;
  section.device.name = read.Text("name");
  section.device.kind = read.Named("kind", kKinds, KindName);
  section.device.cores = static_cast<int>(read.Int("cores", 0, 1 << 20));
  section.device.compute_capability = static_cast<int>(read.Int("compute_capability", 0, 1 << 20));
  section.device.driver = read.Text("driver");
  const std::vector<std::string_view> kernels = KernelNames(section.device.kind, Op::kMatmul);
  for (const Json& element : read.Member("weights", Json::value_t::array, TunedChoices::kMaxKeys)) {
    Reader entry(element, "weights", fault);
    if (!fault.ok()) break;
    MatmulKey key;
    const Json& spec = entry.Member("weight", Json::value_t::object, kMaxRowsOfKey);
    key.weight = ParseSpec(spec, fault);
    key.input = entry.Named("input", kDTypes, DTypeName);
    key.output = entry.Named("output", kDTypes, DTypeName);
    key.activation = entry.Named("activation", kQuantModes, QuantModeName);
    const Json& rows = entry.Member("rows", Json::value_t::array, kMaxRowsOfKey);
    section.weights.emplace_back(key, ParseRows(rows, kernels, fault));
    if (!fault.ok()) break;
  }
  return section;
}

absl::Status FileError(std::string_view what, const std::string& path) {
  return absl::UnavailableError(
      fmt::format("cannot {} '{}': {}", what, path, std::strerror(errno)));
}

}  // namespace

DeviceIdentity IdentityOf(const DeviceInfo& info) {
  return {info.name, info.kind, info.cores, info.compute_capability, info.driver};
}

std::string ToString(const DeviceIdentity& device) {
  return fmt::format("{}, {} cores{}{}", device.name, device.cores,
                     device.driver.empty() ? "" : ", ", device.driver);
}

std::string WriteTuningCache(const TuningCache& cache) {
  Json devices = Json::array();
  for (const TuningCache::Section& section : cache.devices) {
    Json weights = Json::array();
    for (const auto& [key, rows] : section.weights) {
      weights.push_back({{"weight", SpecJson(key.weight)},
                         {"input", DTypeName(key.input)},
                         {"output", DTypeName(key.output)},
                         {"activation", QuantModeName(key.activation)},
                         {"rows", RowsJson(rows)}});
    }
    devices.push_back({{"name", section.device.name},
                       {"kind", KindName(section.device.kind)},
                       {"cores", section.device.cores},
                       {"compute_capability", section.device.compute_capability},
                       {"driver", section.device.driver},
                       {"weights", weights}});
  }
  const Json file = {{"format", kFormat}, {"build", cache.build}, {"devices", devices}};
  return file.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<TuningCache> ParseTuningCache(std::string_view text) {
  NIBBLE_ASSIGN_OR_RETURN(const Json json, checkpoint::ParseJsonObject(text, kMaxFileBytes));
  absl::Status fault;
  Reader read(json, "file", fault);
  read.Int("format", kFormat, kFormat);
  TuningCache cache;
  cache.build = read.Text("build");
  for (const Json& element : read.Member("devices", Json::value_t::array, kMaxDevices)) {
    if (!fault.ok()) break;
    cache.devices.push_back(ParseSection(element, fault));
  }
  if (!fault.ok()) return fault;
  return cache;
}

absl::StatusOr<std::string> ReadTuningFile(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return absl::NotFoundError(fmt::format("no file '{}'", path));
  }
  if (status.type() != std::filesystem::file_type::regular) {
    return absl::InvalidArgumentError(fmt::format("'{}': expected a file", path));
  }
  const uint64_t bytes = std::filesystem::file_size(path, error);
  if (error || bytes > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        fmt::format("'{}': expected at most {} bytes", path, kMaxFileBytes));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file) return FileError("read", path);
  return text;
}

absl::Status ReplaceTuningFile(const std::string& path, std::string_view text) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(fmt::format("'{}': expected a file", path));
  }
  // What a link points to is replaced, not the link.
  const std::filesystem::path target = std::filesystem::weakly_canonical(path, error);
  if (error) return FileError("write", path);
  std::string temporary = target.string() + ".XXXXXX";
  const int descriptor = mkstemp(temporary.data());
  if (descriptor < 0) return FileError("write", path);
  close(descriptor);
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file || std::rename(temporary.c_str(), target.c_str()) != 0) {
    const absl::Status failed = FileError("write", path);
    std::remove(temporary.c_str());
    return failed;
  }
  return absl::OkStatus();
}

}  // namespace nibble::server
