#include "server/tools/inspect.h"

#include <algorithm>
#include <utility>

#include "nibble/format.h"
#include "nibble/status.h"
#include "server/checkpoint/checkpoint.h"

namespace nibble::tools {

absl::StatusOr<Inspection> Inspect(const std::string& directory) {
  NIBBLE_ASSIGN_OR_RETURN(checkpoint::Survey survey, checkpoint::SurveyDirectory(directory));
  Inspection inspection;
  for (const checkpoint::Layer& layer : survey.layers) {
    inspection.layers.push_back({layer.name, layer.dialect, ToString(layer.spec), layer.spec.n,
                                 layer.spec.k, layer.bytes, ""});
  }
  for (const checkpoint::RefusedLayer& layer : survey.refused) {
    inspection.layers.push_back(
        {layer.name, "", layer.stored, 0, 0, layer.bytes, std::string(MessageOf(layer.reason))});
  }
  std::sort(inspection.layers.begin(), inspection.layers.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  inspection.notices = std::move(survey.notices);
  return inspection;
}

}  // namespace nibble::tools
