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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nibble/format.h"
#include "nibble/weight.h"

namespace nibble::checkpoint {

struct Layer {
  std::string name;     // the tensor prefix: "model.layers.0.mlp.down_proj"
  std::string dialect;  // "bitsandbytes", "gptq", "awq", "compressed-tensors", "fp8", "dense"
  WeightSpec spec;      // a norm vector is kDense with n = 1
  int64_t bytes = 0;    // of the canonical weight
  // Host memory that Load takes until its result and Release are done: pages of the file and what
  // is decoded.
  int64_t host_bytes = 0;
};

// Whether q_proj, k_proj and v_proj become one layer qkv_proj, and gate_proj and up_proj one layer
// gate_up_proj, with the rows of the parts one after the other.
enum class Fusing : uint8_t {
  kNone,
  kRequired,       // parts whose format does not allow it exactly are an error
  kWherePossible,  // they stay apart, with a notice
};

struct OpenOptions {
  // Regular expressions without look-around and back references. A layer is taken where one of them
  // matches a part of its name (before fusing). Empty: every layer.
  std::vector<std::string> layers;
  Fusing fusing = Fusing::kNone;
};

// A layer that is recognized and cannot be served.
struct RefusedLayer {
  std::string name;
  std::string stored;  // the tensors that it consists of: "qweight I32 [16, 8], scales F16 [1, 8]"
  int64_t bytes = 0;   // of these
  absl::Status reason;
};

struct Survey {
  std::vector<Layer> layers;  // that can be served; sorted by name, as the others
  std::vector<RefusedLayer> refused;
  std::vector<std::string> notices;
};

// What a directory holds, served or not. Errors as of Checkpoint::Open; what is wrong with one
// layer alone is that layer's refusal.
absl::StatusOr<Survey> SurveyDirectory(const std::string& directory);

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  // A directory with config.json and model.safetensors (or shards and their index).
  // kNotFound: no directory or no safetensors in it. kInvalidArgument: malformed; names file,
  // tensor and rule. kUnimplemented: a dialect that is recognized and not served; names it, the
  // layer, and what would work; or layers that were to be fused and cannot be.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& directory,
                                                          const OpenOptions& options = {});
  // One safetensors file in memory, with the text of config.json (or its quantization_config; may
  // be empty).
  static absl::StatusOr<std::unique_ptr<Checkpoint>> FromBytes(
      std::span<const std::byte> bytes, std::shared_ptr<const void> keep_alive,
      std::string_view config_json, std::string_view label, const OpenOptions& options = {});

  // Every layer that can be served, sorted by name.
  virtual const std::vector<Layer>& layers() const = 0;
  // What was left out or deserves a look, a sentence each.
  virtual const std::vector<std::string>& notices() const = 0;
  // Decodes layers()[index] into its canonical layout. Bytes that are already canonical are
  // borrowed from the mapped file. Thread safe.
  virtual absl::StatusOr<CanonicalWeight> Load(size_t index) const = 0;
  // Like Load, but codes that have to be made may be left to a source of them
  // (CanonicalWeight::code_source), which the checkpoint has to outlive. Thread safe.
  virtual absl::StatusOr<CanonicalWeight> LoadForUpload(size_t index) const { return Load(index); }
  // Gives the system back the memory that holds the file's pages of layers()[index]: it is not
  // going to be loaded again soon. Thread safe.
  virtual void Release(size_t index) const = 0;
  // kInvalidArgument where a file was cut short while weights that borrow from it were read: to be
  // asked once they have been, and before they are used.
  virtual absl::Status CheckIntact() const = 0;
};

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_CHECKPOINT_H_
