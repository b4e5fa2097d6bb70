// A checkpoint directory of any dialect, from a recipe: opened, and every layer loaded and decoded.
// One file alone is opened from memory too, as an upload is, and must give the same layers.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

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

void CheckSameFromBytes(const RecipeFiles& files,
                        const absl::StatusOr<std::unique_ptr<Checkpoint>>& opened) {
  const auto container = files.find("model.safetensors");
  const auto config = files.find("config.json");
  const size_t expected = config == files.end() ? 1 : 2;
  if (container == files.end() || files.size() != expected) return;
  if (config != files.end() && config->second.empty()) return;  // a file must not be empty
  const auto bytes =
      Checkpoint::FromBytes(std::as_bytes(std::span(container->second)), nullptr,
                            config == files.end() ? std::string_view() : config->second, "upload");
  Require(bytes.ok() == opened.ok(), "a directory opens where its file in memory does");
  if (!bytes.ok()) return;
  Require((*bytes)->layers().size() == (*opened)->layers().size(),
          "a file in memory has the layers of its directory");
  for (size_t i = 0; i < (*bytes)->layers().size(); ++i) {
    Require((*bytes)->layers()[i].name == (*opened)->layers()[i].name &&
                (*bytes)->layers()[i].spec == (*opened)->layers()[i].spec,
            "a layer in memory is that of the directory");
  }
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
  const MemoryLimit limit(BytesOf(files));
  const auto checkpoint = nibble::checkpoint::Checkpoint::Open(scratch.directory());
  if (checkpoint.ok()) {
    CheckLayers(**checkpoint, BytesOf(files));
  } else {
    Require(!checkpoint.status().message().empty(), "an error has a message");
  }
  CheckSameFromBytes(files, checkpoint);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return nibble::fuzz::MutateLines(data, size, max_size, seed);
}
