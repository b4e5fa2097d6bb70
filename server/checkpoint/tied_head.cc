#include "server/checkpoint/tied_head.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "fmt/format.h"

namespace nibble::checkpoint {
namespace {

// Model types whose configuration class ties by default, so that config.json may leave it out
// (huggingface/transformers, models/*/configuration_*.py).
constexpr std::array<std::string_view, 7> kTiedByDefault = {
    "gpt2", "openai-gpt", "gemma", "gemma2", "gemma3", "gemma3_text", "opt"};

constexpr std::string_view kWeight = ".weight";

std::string_view LastComponent(std::string_view prefix) {
  const size_t dot = prefix.rfind('.');
  return dot == std::string_view::npos ? prefix : prefix.substr(dot + 1);
}

// Token embeddings [vocabulary, K]: what a head can be tied to.
std::vector<std::string> TokenEmbeddings(const Context& context) {
  std::vector<std::string> found;
  for (const auto& [name, entry] : context.tensors) {
    if (!name.ends_with(kWeight) || entry.shape.size() != 2) continue;
    const std::string prefix = name.substr(0, name.size() - kWeight.size());
    const std::string_view last = LastComponent(prefix);
    const bool is_float = entry.dtype == "F32" || entry.dtype == "F16" || entry.dtype == "BF16";
    const bool is_empty = entry.shape[0] == 0 || entry.shape[1] == 0;
    if (is_float && !is_empty && (last == "embed_tokens" || last == "wte")) found.push_back(prefix);
  }
  return found;
}

// The head beside the body that `embedding` lies in: "lm_head" for "model.embed_tokens",
// "language_model.lm_head" for "language_model.model.embed_tokens".
std::string HeadOf(std::string_view embedding) {
  constexpr std::string_view kBody = ".model";
  std::string_view body = embedding.substr(0, embedding.size() - LastComponent(embedding).size());
  if (body.ends_with('.')) body.remove_suffix(1);
  if (!body.ends_with(kBody)) return "lm_head";
  return fmt::format("{}.lm_head", body.substr(0, body.size() - kBody.size()));
}

}  // namespace

bool IsEmbedding(std::string_view prefix) {
  const std::string_view last = LastComponent(prefix);
  return last.find("embed") != std::string_view::npos || last == "wte" || last == "wpe";
}

void TieHead(const Context& context, DetectedLayers* layers) {
  const std::vector<std::string> embeddings = TokenEmbeddings(context);
  if (embeddings.size() != 1) return;
  const std::string& embedding = embeddings.front();
  std::string head = HeadOf(embedding);
  for (const auto& [name, layer] : *layers) {
    if (LastComponent(name) == "lm_head") head = name;
  }
  const std::string& model = context.config.model_type;
  const bool by_default =
      std::find(kTiedByDefault.begin(), kTiedByDefault.end(), model) != kTiedByDefault.end();
  const auto found = layers->find(head);
  if (!context.config.tie_embeddings.value_or(by_default)) {
    if (found == layers->end() && !model.empty()) {
      context.notices->Add("there is no lm_head, nor tie_word_embeddings to take it from",
                           embedding);
    }
    return;
  }
  if (found != layers->end()) {
    context.notices->Add("tied to the embedding, so that tensors of its own are left out", head);
    layers->erase(found);
  }
  layers->emplace(head, DetectedLayer{&PlanDense, embedding});
}

}  // namespace nibble::checkpoint
