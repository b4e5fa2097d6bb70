#include <fstream>

#include "client/cpp/cli/command.h"
#include "client/cpp/cli/interrupt.h"
#include "client/cpp/cli/quantize_flags.h"
#include "client/cpp/cli/table.h"
#include "fmt/format.h"
#include "server/tools/quantize.h"

namespace nibble::cli {
namespace {

Json LayerJson(const tools::LayerReport& layer) {
  return {{"name", layer.name},
          {"format", layer.format},
          {"n", layer.n},
          {"k", layer.k},
          {"bytes_before", layer.bytes_before},
          {"bytes_after", layer.bytes_after},
          {"relative_error", layer.relative_error},
          {"max_error", layer.max_error}};
}

Json ReportJson(const tools::QuantizeRequest& request, const tools::QuantizeReport& report) {
  Json layers = Json::array();
  for (const tools::LayerReport& layer : report.layers) layers.push_back(LayerJson(layer));
  return {{"input", request.input},
          {"output", request.output},
          {"format", request.format},
          {"layers", layers},
          {"kept", report.kept},
          {"copied_tensors", report.copied_tensors},
          {"bytes_before", report.bytes_before},
          {"bytes_after", report.bytes_after},
          {"files", report.files},
          {"notices", report.notices}};
}

std::string ReportText(const tools::QuantizeReport& report) {
  Table table({"<LAYER", "<FORMAT", ">BEFORE", ">AFTER", ">RELATIVE ERROR", ">MAX ERROR"});
  for (const tools::LayerReport& layer : report.layers) {
    table.AddRow({layer.name, layer.format, FormatBytes(layer.bytes_before),
                  FormatBytes(layer.bytes_after), fmt::format("{:.5f}", layer.relative_error),
                  fmt::format("{:.3g}", layer.max_error)});
  }
  std::string text = table.ToString();
  for (const std::string& notice : report.notices) text += "notice: " + notice + "\n";
  return text + fmt::format("{} quantized, {} copied: {} to {} in {}\n",
                            Plural(static_cast<int64_t>(report.layers.size()), "layer"),
                            Plural(report.copied_tensors, "tensor"),
                            FormatBytes(report.bytes_before), FormatBytes(report.bytes_after),
                            Plural(static_cast<int64_t>(report.files.size()), "file"));
}

class QuantizeCommand final : public Command {
 public:
  explicit QuantizeCommand(CLI::App& parent)
      : Command(parent, "quantize",
                "Quantize a checkpoint directory into another: bitsandbytes (nf4, fp4) or "
                "compressed-tensors (int4, fp8); needs no server") {
    CLI::App& flags = *app();
    flags.add_option("IN", request_.input, "Directory of the unquantized checkpoint")->required();
    flags.add_option("OUT", request_.output, "Directory to create")->required();
    quantize_.AddTo(flags);
    flags.add_option("--threads", request_.threads, "Threads. Default: all cores")
        ->check(CLI::Range(1, 1024));
    flags
        .add_option("--max-shard-bytes", request_.max_shard_bytes,
                    "Largest safetensors file, unless a layer alone is larger")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    flags.add_option("--report", report_path_, "File for the report as JSON");
    flags.add_flag("--force", request_.force, "Replace a checkpoint that is at OUT");
  }

  std::string UsageError() const override {
    if (!quantize_.format().given()) return "--format: expected nf4, fp4, int4 or fp8";
    if (quantize_.format().Spec().format() == v1::WEIGHT_FORMAT_DENSE) {
      return "--format: expected nf4, fp4, int4 or fp8; received dense";
    }
    return "";
  }

  absl::StatusOr<int> Run(const Session& session) override {
    request_.format = quantize_.format().Text();
    request_.include = quantize_.include();
    request_.exclude = quantize_.exclude();
    absl::StatusOr<tools::QuantizeReport> report;
    {
      Progress progress(session.io(), "quantize " + request_.input);
      const Interrupt interrupt;
      request_.cancelled = &interrupt.asked();
      report = tools::QuantizeCheckpoint(
          request_, [&](int64_t done, int64_t total, const std::string& layer) {
            progress.Update(done, total, layer);
          });
      request_.cancelled = nullptr;
    }
    if (!report.ok()) return report.status();
    const Json document = ReportJson(request_, *report);
    if (!report_path_.empty()) {
      std::ofstream file(report_path_);
      file << document.dump(2) << '\n';
      file.close();
      if (!file) {
        return absl::InvalidArgumentError(fmt::format("--report: cannot write '{}'", report_path_));
      }
    }
    session.Print(document, ReportText(*report));
    return 0;
  }

 private:
  tools::QuantizeRequest request_;
  QuantizeFlags quantize_;
  std::string report_path_;
};

}  // namespace

void AddQuantizeCommand(CLI::App& parent, Commands& commands) {
  commands.push_back(std::make_unique<QuantizeCommand>(parent));
}

}  // namespace nibble::cli
