#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/cli/command.h"
#include "client/cpp/cli/flags.h"
#include "client/cpp/cli/format_flags.h"
#include "client/cpp/cli/table.h"
#include "fmt/format.h"

namespace nibble::cli {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

Json FormatJson(const v1::FormatSpec& format) {
  Json json = {{"name", FlagName(format.format())}};
  switch (format.format()) {
    case v1::WEIGHT_FORMAT_NF4:
    case v1::WEIGHT_FORMAT_FP4:
      json["block_size"] = format.block_size();
      json["nested"] = format.nested();
      break;
    case v1::WEIGHT_FORMAT_INT4:
      json["group_size"] = format.group_size();
      json["zero_points"] = format.zero_points();
      json["act_order"] = format.act_order();
      break;
    case v1::WEIGHT_FORMAT_FP8:
      json["scale_layout"] = FlagName(format.scale_layout());
      break;
    default:
      break;
  }
  return json;
}

Json SummaryJson(const v1::WeightSummary& weight) {
  Json json = {{"name", weight.name()},
               {"version", weight.version()},
               {"state", FlagName(weight.state())},
               {"format", FormatJson(weight.format())},
               {"n", weight.n()},
               {"k", weight.k()},
               {"device_bytes", weight.device_bytes()},
               {"device", weight.device()}};
  if (!weight.error().empty()) json["error"] = weight.error();
  return json;
}

using Choices = google::protobuf::RepeatedPtrField<v1::KernelChoice>;

// "table", "measured"; servers of before do not say.
std::string_view SourceName(v1::KernelSource source) {
  switch (source) {
    case v1::KERNEL_SOURCE_TABLE:
      return "table";
    case v1::KERNEL_SOURCE_MEASURED:
      return "measured";
    case v1::KERNEL_SOURCE_PREDICTED:
      return "predicted";
    default:
      return "unknown";
  }
}

Json ChoicesJson(const Choices& choices) {
  Json json = Json::array();
  for (const v1::KernelChoice& choice : choices) {
    Json& element = json.emplace_back();
    element = {{"m_begin", choice.m_begin()}, {"m_end", choice.m_end()},
               {"kernel", choice.kernel()},   {"tile_m", choice.tile_m()},
               {"tile_n", choice.tile_n()},   {"tile_k", choice.tile_k()},
               {"split_k", choice.split_k()}, {"source", SourceName(choice.source())}};
    // Times that are not known are left out.
    for (const auto& [name, us] : {std::pair{"predicted_begin_us", choice.predicted_begin_us()},
                                   {"predicted_end_us", choice.predicted_end_us()},
                                   {"measured_begin_us", choice.measured_begin_us()},
                                   {"measured_end_us", choice.measured_end_us()}}) {
      if (us > 0.0) element[name] = us;
    }
  }
  return json;
}

// "12.3..45.6", "-" for a time that is not known.
std::string TimesText(double begin_us, double end_us) {
  const auto text = [](double us) { return us > 0.0 ? fmt::format("{:.1f}", us) : "-"; };
  return text(begin_us) == text(end_us) ? text(begin_us)
                                        : fmt::format("{}..{}", text(begin_us), text(end_us));
}

std::string ChoicesTable(const Choices& choices) {
  Table table(
      {">M", "<KERNEL", "<TILE MxNxK", ">SPLIT-K", "<SOURCE", ">PREDICTED US", ">MEASURED US"});
  for (const v1::KernelChoice& choice : choices) {
    table.AddRow({choice.m_begin() == choice.m_end()
                      ? fmt::format("{}", choice.m_begin())
                      : fmt::format("{}..{}", choice.m_begin(), choice.m_end()),
                  choice.kernel(),
                  fmt::format("{}x{}x{}", choice.tile_m(), choice.tile_n(), choice.tile_k()),
                  fmt::format("{}", choice.split_k()), std::string(SourceName(choice.source())),
                  TimesText(choice.predicted_begin_us(), choice.predicted_end_us()),
                  TimesText(choice.measured_begin_us(), choice.measured_end_us())});
  }
  return table.ToString();
}

using Measured = google::protobuf::RepeatedPtrField<v1::MeasuredRows>;

Json MeasuredJson(const Measured& measured) {
  Json json = Json::array();
  for (const v1::MeasuredRows& rows : measured) {
    Json times = Json::object();
    for (const v1::MeasuredTime& time : rows.times()) times[time.kernel()] = time.us();
    json.push_back({{"m", rows.m()}, {"us", times}});
  }
  return json;
}

// A column of microseconds for each kernel; empty where nothing was measured.
std::string MeasuredTable(const Measured& measured) {
  std::vector<std::string> columns = {">MEASURED M"};
  std::vector<std::string> kernels;
  for (const v1::MeasuredRows& rows : measured) {
    for (const v1::MeasuredTime& time : rows.times()) {
      if (std::ranges::find(kernels, time.kernel()) != kernels.end()) continue;
      kernels.push_back(time.kernel());
      columns.push_back(fmt::format(">{} us", time.kernel()));
    }
  }
  if (kernels.empty()) return "";
  Table table(columns);
  for (const v1::MeasuredRows& rows : measured) {
    std::vector<std::string> cells(columns.size(), "-");
    cells[0] = fmt::format("{}", rows.m());
    for (const v1::MeasuredTime& time : rows.times()) {
      const auto column = std::ranges::find(kernels, time.kernel()) - kernels.begin();
      cells[static_cast<size_t>(column) + 1] = TimesText(time.us(), time.us());
    }
    table.AddRow(std::move(cells));
  }
  return "\n" + table.ToString();
}

class ListCommand final : public Command {
 public:
  explicit ListCommand(CLI::App& parent) : Command(parent, "list", "Every weight with its state") {
    app()->add_option("--prefix", prefix_, "Only names that start with this");
  }

  absl::StatusOr<int> Run(const Session& session) override {
    auto client = session.Connect();
    if (!client.ok()) return client.status();
    v1::ListRequest request;
    request.set_prefix(prefix_);
    const auto reply = (*client)->List(request, session.Call());
    if (!reply.ok()) return reply.status();
    Json weights = Json::array();
    Table table(
        {"<NAME", ">VERSION", "<STATE", "<FORMAT", ">N", ">K", ">SIZE", "<DEVICE", "<ERROR"});
    int64_t bytes = 0;
    for (const v1::WeightSummary& weight : reply->weights()) {
      weights.push_back(SummaryJson(weight));
      bytes += weight.device_bytes();
      table.AddRow({weight.name(), fmt::format("{}", weight.version()),
                    std::string(FlagName(weight.state())), FormatText(weight.format()),
                    fmt::format("{}", weight.n()), fmt::format("{}", weight.k()),
                    FormatBytes(weight.device_bytes()), weight.device(), weight.error()});
    }
    const std::string text =
        fmt::format("{}{}, {}\n", table.ToString(), Plural(reply->weights_size(), "weight"),
                    FormatBytes(bytes));
    session.Print({{"weights", weights}}, text);
    return 0;
  }

 private:
  std::string prefix_;
};

class DescribeCommand final : public Command {
 public:
  explicit DescribeCommand(CLI::App& parent)
      : Command(parent, "describe", "One weight: geometry, counters, kernels") {
    app()->add_option("WEIGHT", name_, "Name of the weight")->required();
  }

  absl::StatusOr<int> Run(const Session& session) override {
    auto client = session.Connect();
    if (!client.ok()) return client.status();
    v1::DescribeRequest request;
    request.set_name(name_);
    const auto reply = (*client)->Describe(request, session.Call());
    if (!reply.ok()) return reply.status();
    session.Print(Document(*reply), Text(*reply));
    return 0;
  }

 private:
  static Json Document(const v1::DescribeResponse& reply) {
    Json document = SummaryJson(reply.summary());
    document["dtype"] = FlagName(reply.dtype());
    document["has_bias"] = reply.has_bias();
    if (reply.has_input_scale()) document["input_scale"] = reply.input_scale();
    document["handles"] = reply.handles();
    document["counters"] = {{"requests", reply.counters().requests()},
                            {"rows", reply.counters().rows()},
                            {"batches", reply.counters().batches()},
                            {"compute_us", reply.counters().compute_us()}};
    document["kernels"] = ChoicesJson(reply.kernels());
    return document;
  }

  static std::string Text(const v1::DescribeResponse& reply) {
    const v1::WeightSummary& weight = reply.summary();
    const v1::WeightCounters& counters = reply.counters();
    Pairs pairs = {{"name", weight.name()},
                   {"version", fmt::format("{}", weight.version())},
                   {"state", std::string(FlagName(weight.state()))},
                   {"format", FormatText(weight.format())},
                   {"shape", fmt::format("[{}, {}]", weight.n(), weight.k())},
                   {"decodes to", std::string(FlagName(reply.dtype()))},
                   {"bias", reply.has_bias() ? "yes" : "no"},
                   {"size", FormatBytes(weight.device_bytes())},
                   {"device", weight.device()},
                   {"handles", fmt::format("{}", reply.handles())},
                   {"requests", fmt::format("{}", counters.requests())},
                   {"rows", fmt::format("{}", counters.rows())},
                   {"batches", fmt::format("{}", counters.batches())},
                   {"compute", FormatMicros(static_cast<double>(counters.compute_us()))}};
    if (reply.has_input_scale()) {
      pairs.emplace_back("input scale", fmt::format("{:.9g}", reply.input_scale()));
    }
    if (!weight.error().empty()) pairs.emplace_back("error", weight.error());
    std::string text = FormatPairs(pairs);
    if (reply.kernels_size() > 0) text += "\n" + ChoicesTable(reply.kernels());
    return text;
  }

  std::string name_;
};

class UnloadCommand final : public Command {
 public:
  explicit UnloadCommand(CLI::App& parent)
      : Command(parent, "unload", "Drain and free a weight, or all of a model") {
    app()->add_option("NAME", name_, "Name of the weight or model")->required();
  }

  absl::StatusOr<int> Run(const Session& session) override {
    auto client = session.Connect();
    if (!client.ok()) return client.status();
    v1::UnloadRequest request;
    request.set_name(name_);
    const auto reply = (*client)->Unload(request, session.Call());
    if (!reply.ok()) return reply.status();
    session.Print(
        {{"name", name_}, {"weights", reply->weights()}, {"freed_bytes", reply->freed_bytes()}},
        fmt::format("unloaded {}: {}, {} freed\n", name_, Plural(reply->weights(), "weight"),
                    FormatBytes(reply->freed_bytes())));
    return 0;
  }

 private:
  std::string name_;
};

class ExplainCommand final : public Command {
 public:
  explicit ExplainCommand(CLI::App& parent)
      : Command(parent, "explain",
                "The kernel chosen for each M of a weight, or of one that need not exist") {
    CLI::App& flags = *app();
    weight_option_ = flags.add_option("WEIGHT", weight_, "Name of a resident weight");
    format_.AddTo(flags);
    n_option_ =
        flags.add_option("--n", n_, "Outputs of a hypothetical weight")->check(CLI::PositiveNumber);
    k_option_ =
        flags.add_option("--k", k_, "Inputs of a hypothetical weight")->check(CLI::PositiveNumber);
    flags.add_option("--max-m", max_m_, "Largest M")
        ->check(CLI::Range(int64_t{1}, int64_t{65536}))
        ->capture_default_str();
    flags.add_option("--device", device_,
                     "Device, as \"cpu:0\". Default: the weight's, or the first");
    AddNamedFlag(flags, "--input-dtype", input_dtype_, DTypeFlags(), "Type of x. Default bf16");
    AddNamedFlag(flags, "--activation-quant", quant_, QuantModeFlags(), "Default none");
  }

  std::string UsageError() const override {
    const bool hypothetical = format_.given();
    if (weight_option_->count() > 0 && hypothetical) return "--format: not together with WEIGHT";
    if (weight_option_->count() == 0 && !hypothetical)
      return "expected WEIGHT, or --format, --n and --k";
    if (hypothetical && (n_option_->count() == 0 || k_option_->count() == 0)) {
      return "--format: needs --n and --k";
    }
    return "";
  }

  absl::StatusOr<int> Run(const Session& session) override {
    auto client = session.Connect();
    if (!client.ok()) return client.status();
    v1::ExplainRequest request;
    if (format_.given()) {
      *request.mutable_hypothetical()->mutable_format() = format_.Spec();
      request.mutable_hypothetical()->set_n(n_);
      request.mutable_hypothetical()->set_k(k_);
    } else {
      request.set_weight(weight_);
    }
    request.set_device(device_);
    request.set_max_m(max_m_);
    request.set_input_dtype(input_dtype_);
    request.set_activation_quant(quant_);
    const auto reply = (*client)->Explain(request, session.Call());
    if (!reply.ok()) return reply.status();
    session.Print({{"device", reply->device()},
                   {"device_description", reply->device_description()},
                   {"kernels", ChoicesJson(reply->kernels())},
                   {"measured", MeasuredJson(reply->measured())}},
                  fmt::format("{}\n{}{}", DeviceLine(*reply), ChoicesTable(reply->kernels()),
                              MeasuredTable(reply->measured())));
    return 0;
  }

 private:
  // The description, after the device's id unless it begins with that.
  static std::string DeviceLine(const v1::ExplainResponse& reply) {
    if (reply.device_description().starts_with(reply.device())) return reply.device_description();
    return reply.device() + ": " + reply.device_description();
  }

  CLI::Option* weight_option_ = nullptr;
  std::string weight_;
  FormatFlags format_;
  CLI::Option* n_option_ = nullptr;
  CLI::Option* k_option_ = nullptr;
  int64_t n_ = 0;
  int64_t k_ = 0;
  int64_t max_m_ = 4096;
  std::string device_;
  v1::DType input_dtype_ = v1::DTYPE_UNSPECIFIED;
  v1::QuantMode quant_ = v1::QUANT_MODE_NONE;
};

}  // namespace

void AddWeightCommands(CLI::App& parent, Commands& commands) {
  commands.push_back(std::make_unique<ListCommand>(parent));
  commands.push_back(std::make_unique<DescribeCommand>(parent));
  commands.push_back(std::make_unique<UnloadCommand>(parent));
  commands.push_back(std::make_unique<ExplainCommand>(parent));
}

}  // namespace nibble::cli
