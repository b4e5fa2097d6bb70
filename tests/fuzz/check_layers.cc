#include "tests/fuzz/check_layers.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "nibble/format.h"
#include "nibble/weight.h"
#include "tests/fuzz/memory_limit.h"
#include "tests/fuzz/require.h"

namespace nibble::fuzz {
namespace {

void CheckDecodes(const CanonicalWeight& weight) {
  std::vector<float> row(static_cast<size_t>(weight.spec.k));
  Require(DecodeReference(weight, 0, 1, row).ok(), "the first row decodes");
  Require(DecodeReference(weight, weight.spec.n - 1, 1, row).ok(), "the last row decodes");
}

}  // namespace

void CheckLayers(const checkpoint::Checkpoint& checkpoint, int64_t file_bytes) {
  const std::vector<checkpoint::Layer>& layers = checkpoint.layers();
  Require(!layers.empty(), "a checkpoint that opens has a layer");
  Require(std::is_sorted(layers.begin(), layers.end(),
                         [](const auto& a, const auto& b) { return a.name < b.name; }),
          "layers are sorted by name");
  for (size_t i = 0; i < layers.size(); ++i) {
    const checkpoint::Layer& layer = layers[i];
    const auto geometry = GeometryOf(layer.spec);
    Require(geometry.ok() && geometry->total_bytes == layer.bytes,
            "a layer's bytes are those of its spec");
    Require(layer.bytes <= file_bytes + kSlackBytes, "a layer is no larger than its file");
    const auto weight = checkpoint.Load(i);
    if (!weight.ok()) continue;
    Require(weight->spec == layer.spec, "a layer loads as it was announced");
    Require(ValidateWeight(*weight).ok(), "a layer that loads is valid");
    CheckDecodes(*weight);
  }
  Require(!checkpoint.Load(layers.size()).ok(), "no layer follows the last one");
  Require(checkpoint.CheckIntact().ok(), "files that stay as they are, are intact");
}

}  // namespace nibble::fuzz
