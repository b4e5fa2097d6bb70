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

// The codes that a source gives, whole and by tiles, are those of `whole`.
void CheckSource(const CanonicalWeight& whole, const CanonicalWeight& weight) {
  const CodeSource& source = *weight.code_source;
  Require(weight.spec == whole.spec && weight.codes.empty(), "a source stands in for codes");
  Require(std::ranges::equal(source.ReadAll().span(), whole.codes.span()),
          "a source has all the codes of its layer");
  const int64_t n = whole.spec.n;
  const int64_t k = whole.spec.k;
  const int64_t row_bytes = CeilDiv(k, 2);
  // The last tile of 32 rows and 64 inputs, which may be ragged.
  const CodeTile tile = {.row = (n - 1) / 32 * 32,
                         .rows = n - (n - 1) / 32 * 32,
                         .k = (k - 1) / 64 * 64,
                         .inputs = k - (k - 1) / 64 * 64};
  const int64_t stride = CeilDiv(tile.inputs, 2);
  std::vector<std::byte> codes(static_cast<size_t>(tile.rows * stride));
  source.Read(tile, codes.data(), stride);
  for (int64_t row = 0; row < tile.rows; ++row) {
    const std::byte* const expected =
        whole.codes.data() + (tile.row + row) * row_bytes + tile.k / 2;
    Require(std::equal(expected, expected + stride, codes.data() + row * stride),
            "a tile has the codes of its layer");
  }
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
    const auto for_upload = checkpoint.LoadForUpload(i);
    Require(for_upload.status() == weight.status(), "a layer loads for an upload where it loads");
    if (!weight.ok()) continue;
    Require(weight->spec == layer.spec, "a layer loads as it was announced");
    Require(ValidateWeight(*weight).ok(), "a layer that loads is valid");
    CheckDecodes(*weight);
    if (for_upload->code_source != nullptr) CheckSource(*weight, *for_upload);
  }
  Require(!checkpoint.Load(layers.size()).ok(), "no layer follows the last one");
  Require(checkpoint.CheckIntact().ok(), "files that stay as they are, are intact");
}

}  // namespace nibble::fuzz
