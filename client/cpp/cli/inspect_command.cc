#include "client/cpp/cli/command.h"
#include "client/cpp/cli/table.h"
#include "fmt/format.h"
#include "server/tools/inspect.h"

namespace nibble::cli {
namespace {

Json LayerJson(const tools::InspectedLayer& layer) {
  Json json = {{"name", layer.name},
               {"dialect", layer.dialect},
               {"format", layer.format},
               {"n", layer.n},
               {"k", layer.k},
               {"bytes", layer.bytes},
               {"served", layer.refusal.empty()}};
  if (!layer.refusal.empty()) json["refusal"] = layer.refusal;
  return json;
}

class InspectCommand final : public Command {
 public:
  explicit InspectCommand(CLI::App& parent)
      : Command(parent, "inspect",
                "What a checkpoint directory holds, layer by layer, and whether it can be served; "
                "needs no server") {
    app()->add_option("DIR", directory_, "Directory of the checkpoint")->required();
  }

  // 0: everything can be served; 1: something cannot.
  absl::StatusOr<int> Run(const Session& session) override {
    const absl::StatusOr<tools::Inspection> inspection = tools::Inspect(directory_);
    if (!inspection.ok()) return inspection.status();
    Json layers = Json::array();
    Table table({"<LAYER", "<DIALECT", "<FORMAT", ">N", ">K", ">SIZE", "<REFUSED BECAUSE"});
    int64_t bytes = 0;
    int64_t refused = 0;
    for (const tools::InspectedLayer& layer : inspection->layers) {
      layers.push_back(LayerJson(layer));
      bytes += layer.bytes;
      if (!layer.refusal.empty()) ++refused;
      table.AddRow({layer.name, layer.dialect, layer.format, fmt::format("{}", layer.n),
                    fmt::format("{}", layer.k), FormatBytes(layer.bytes), layer.refusal});
    }
    Json notices = Json::array();
    std::string text = table.ToString();
    for (const std::string& notice : inspection->notices) {
      notices.push_back(notice);
      text += "notice: " + notice + "\n";
    }
    text += fmt::format(
        "{}, {}{}\n", Plural(static_cast<int64_t>(inspection->layers.size()), "layer"),
        FormatBytes(bytes), refused > 0 ? fmt::format("; {} cannot be served", refused) : "");
    session.Print({{"directory", directory_}, {"layers", layers}, {"notices", notices}}, text);
    return refused > 0 ? 1 : 0;
  }

 private:
  std::string directory_;
};

}  // namespace

void AddInspectCommand(CLI::App& parent, Commands& commands) {
  commands.push_back(std::make_unique<InspectCommand>(parent));
}

}  // namespace nibble::cli
