// A checkpoint as a list of layers that can be loaded into canonical weights. Each on-disk dialect
// (bitsandbytes, GPTQ, AWQ, compressed-tensors, FP8) is decoded exactly or refused by name.
#ifndef NIBBLE_SERVER_CHECKPOINT_CHECKPOINT_H_
#define NIBBLE_SERVER_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nibble/format.h"
#include "nibble/weight.h"

namespace nibble::checkpoint {

struct Layer {
  std::string name;     // the tensor prefix: "model.layers.0.mlp.down_proj"
  std::string dialect;  // "bitsandbytes", "gptq", "awq", "compressed-tensors", "fp8", "dense"
  WeightSpec spec;      // a norm vector is kDense with n = 1
  int64_t bytes = 0;    // of the canonical weight
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  // A directory with config.json and model.safetensors (or shards and their index).
  // kNotFound: no directory or no safetensors in it. kInvalidArgument: malformed; names file,
  // tensor and rule. kUnimplemented: a dialect that is recognized and not served; names it, the
  // layer, and what would work.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& directory);
  // One safetensors file in memory, with the text of config.json (or its quantization_config; may
  // be empty).
  static absl::StatusOr<std::unique_ptr<Checkpoint>> FromBytes(
      std::span<const std::byte> bytes, std::shared_ptr<const void> keep_alive,
      std::string_view config_json, std::string_view label);

  // Every layer that can be served, sorted by name.
  virtual const std::vector<Layer>& layers() const = 0;
  // What was left out or deserves a look, a sentence each.
  virtual const std::vector<std::string>& notices() const = 0;
  // Decodes layers()[index] into its canonical layout. Bytes that are already canonical are
  // borrowed from the mapped file. Thread safe.
  virtual absl::StatusOr<CanonicalWeight> Load(size_t index) const = 0;
  // kInvalidArgument where a file was cut short while weights that borrow from it were read: to be
  // asked once they have been, and before they are used.
  virtual absl::Status CheckIntact() const = 0;
};

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_CHECKPOINT_H_
