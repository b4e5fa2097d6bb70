// A checkpoint directory, from a recipe, in every way of opening it: surveyed, whole, one layer,
// and with parts fused. The ways must agree with each other.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nibble/weight.h"
#include "server/checkpoint/checkpoint.h"
#include "tests/fuzz/check_layers.h"
#include "tests/fuzz/checkpoint_recipe.h"
#include "tests/fuzz/memory_limit.h"
#include "tests/fuzz/mutate_lines.h"
#include "tests/fuzz/require.h"
#include "tests/fuzz/scratch_files.h"

namespace nibble::fuzz {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Fusing;
using checkpoint::Layer;
using Opened = absl::StatusOr<std::unique_ptr<Checkpoint>>;

Opened Open(const std::string& directory, Fusing fusing, std::vector<std::string> layers = {}) {
  return Checkpoint::Open(directory, {.layers = std::move(layers), .fusing = fusing});
}

void CheckSurvey(const std::string& directory, const Opened& whole, int64_t file_bytes) {
  const auto survey = checkpoint::SurveyDirectory(directory);
  if (!whole.ok()) return;
  Require(survey.ok() && survey->refused.empty(),
          "nothing is refused of a directory that can be opened");
  Require(survey->layers.size() == (*whole)->layers().size(), "a survey has every layer");
  for (size_t i = 0; i < survey->layers.size(); ++i) {
    const Layer& layer = survey->layers[i];
    Require(layer.name == (*whole)->layers()[i].name && layer.spec == (*whole)->layers()[i].spec,
            "a layer of a survey is the one that is opened");
    Require(layer.host_bytes >= 0 && layer.host_bytes <= 2 * file_bytes + kSlackBytes,
            "the host memory for a layer is in proportion to its file");
  }
}

// The last row of a weight, which fusing must not change.
std::vector<float> LastRow(const CanonicalWeight& weight) {
  std::vector<float> row(static_cast<size_t>(weight.spec.k));
  Require(DecodeReference(weight, weight.spec.n - 1, 1, row).ok(), "the last row decodes");
  return row;
}

// The rows of `fused` that were the last one of each of its parts.
void CheckFused(const CanonicalWeight& fused, const std::vector<CanonicalWeight>& parts) {
  int64_t end = 0;
  for (const CanonicalWeight& part : parts) {
    end += part.spec.n;
    Require(end <= fused.spec.n && part.spec.k == fused.spec.k,
            "a fused layer has its parts' rows");
    std::vector<float> row(static_cast<size_t>(fused.spec.k));
    Require(DecodeReference(fused, end - 1, 1, row).ok(), "a row of a fused layer decodes");
    const std::vector<float> expected = LastRow(part);
    Require(std::memcmp(row.data(), expected.data(), row.size() * sizeof(float)) == 0,
            "a fused layer decodes to its parts");
  }
  Require(end == fused.spec.n, "a fused layer has no other rows");
}

void CompareFused(const Checkpoint& whole, const Checkpoint& fused) {
  std::map<std::string, size_t, std::less<>> parts;
  for (size_t i = 0; i < whole.layers().size(); ++i) parts.emplace(whole.layers()[i].name, i);
  for (size_t i = 0; i < fused.layers().size(); ++i) {
    const std::string& name = fused.layers()[i].name;
    if (parts.contains(name)) continue;
    const bool qkv = name.ends_with("qkv_proj");
    Require(qkv || name.ends_with("gate_up_proj"), "a new layer is a fused one");
    const std::string owner =
        name.substr(0, name.size() - std::string_view(qkv ? "qkv_proj" : "gate_up_proj").size());
    std::vector<CanonicalWeight> weights;
    bool loaded = true;
    for (const char* part : qkv ? std::vector<const char*>{"q_proj", "k_proj", "v_proj"}
                                : std::vector<const char*>{"gate_proj", "up_proj"}) {
      const auto at = parts.find(owner + part);
      Require(at != parts.end(), "the parts of a fused layer were layers");
      auto weight = whole.Load(at->second);
      loaded = loaded && weight.ok();
      if (weight.ok()) weights.push_back(*std::move(weight));
    }
    const auto weight = fused.Load(i);
    Require(weight.ok() == loaded, "a fused layer loads where its parts do");
    if (loaded) CheckFused(*weight, weights);
  }
}

// The layer in the middle alone, by its name.
void CheckSelection(const std::string& directory, const Checkpoint& whole) {
  const Layer& wanted = whole.layers()[whole.layers().size() / 2];
  const auto selected = Open(directory, Fusing::kNone, {"^\\Q" + wanted.name + "\\E$"});
  if (wanted.name.find("\\E") != std::string::npos) return;
  if (!selected.ok()) return;  // a name that is longer than a pattern, or not UTF-8
  Require((*selected)->layers().size() == 1 && (*selected)->layers()[0].name == wanted.name,
          "the layer that was selected is opened alone");
}

}  // namespace
}  // namespace nibble::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble::fuzz;
  static ScratchFiles scratch;
  const RecipeFiles files = MakeFiles({reinterpret_cast<const char*>(data), size});
  if (files.empty()) return 0;
  scratch.Clear();
  for (const auto& [name, bytes] : files) scratch.Write(name, bytes);
  const std::string& directory = scratch.directory();
  const MemoryLimit limit(2 * BytesOf(files));  // the directory is open twice
  const Opened whole = Open(directory, Fusing::kNone);
  CheckSurvey(directory, whole, BytesOf(files));
  const Opened fused = Open(directory, Fusing::kWherePossible);
  const Opened required = Open(directory, Fusing::kRequired);
  Require(fused.ok() == whole.ok(), "parts that cannot be fused stay apart");
  Require(fused.ok() || !required.ok(), "what cannot be opened cannot be fused");
  if (!whole.ok()) return 0;
  CheckLayers(**fused, BytesOf(files));
  CompareFused(**whole, **fused);
  CheckSelection(directory, **whole);
  for (size_t i = 0; i <= (*whole)->layers().size(); ++i) (*whole)->Release(i);
  CheckLayers(**whole, BytesOf(files));
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return nibble::fuzz::MutateLines(data, size, max_size, seed);
}
