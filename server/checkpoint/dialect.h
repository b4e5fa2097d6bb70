// What the dialects share: the tensors of a checkpoint, the plan of one layer, and the checks that
// every dialect makes. Each Plan function looks at one layer's tensors, checks their types and
// shapes, and says how to decode them; nothing is decoded until the plan runs.
#ifndef NIBBLE_SERVER_CHECKPOINT_DIALECT_H_
#define NIBBLE_SERVER_CHECKPOINT_DIALECT_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nibble/weight.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/quant_config.h"
#include "server/checkpoint/safetensors.h"

namespace nibble::checkpoint {

using TensorMap = std::map<std::string, TensorEntry, std::less<>>;

// Remarks, gathered by what they say so that a thousand layers make one sentence.
class Notices {
 public:
  void Add(std::string what, std::string where);
  std::vector<std::string> Sentences() const;

 private:
  struct Places {
    std::string first;
    int64_t count = 0;
  };
  std::map<std::string, Places> places_;
};

struct Context {
  const TensorMap& tensors;
  const QuantConfig& config;
  Notices* notices;

  // The tensor `prefix` + `suffix`, or nullptr.
  const TensorEntry* Find(std::string_view prefix, std::string_view suffix) const;
  // The same; kInvalidArgument names the tensor that is missing.
  absl::StatusOr<const TensorEntry*> Require(std::string_view prefix,
                                             std::string_view suffix) const;
};

// One array of a canonical weight: bytes that lie in the file as they are, or a function that
// writes them from bytes of the file.
struct PartPlan {
  int64_t bytes = 0;
  HostBytes borrowed;                                   // where `write` is none
  std::function<void(std::span<std::byte> out)> write;  // out.size() is `bytes`
  // Codes that can be written by tiles too: CodeSource::Read and PreferredTile().
  std::function<void(const CodeTile& tile, std::byte* out, int64_t stride)> write_tile;
  CodeTile preferred_tile;
};

// A layer that can be decoded. It points into Context::tensors, which outlive the plan.
struct LayerPlan {
  Layer layer;
  std::vector<std::string> prefixes;  // of the tensors that it is made of
  WeightSpec spec;
  PartPlan codes;
  PartPlan scales;
  PartPlan nested_scales;
  PartPlan nested_map;
  PartPlan zero_points;
  PartPlan group_index;
  PartPlan bias;
  float nested_offset = 0.0f;
  float input_scale = 1.0f;
};

using PlanFunction = absl::StatusOr<LayerPlan> (*)(const Context&, const std::string& prefix);

absl::StatusOr<LayerPlan> PlanDense(const Context& context, const std::string& prefix);
absl::StatusOr<LayerPlan> PlanBitsandbytes(const Context& context, const std::string& prefix);
absl::StatusOr<LayerPlan> PlanGptq(const Context& context, const std::string& prefix);
absl::StatusOr<LayerPlan> PlanAwq(const Context& context, const std::string& prefix);
absl::StatusOr<LayerPlan> PlanPackQuantized(const Context& context, const std::string& prefix);
absl::StatusOr<LayerPlan> PlanFp8(const Context& context, const std::string& prefix);

// kUnimplemented: `kind` is recognized and not served; `instead` is what would work.
absl::Status Refused(std::string_view kind, std::string_view instead);

// kInvalidArgument unless `entry` is of one of `dtypes`.
absl::Status ExpectDType(std::string_view tensor, const TensorEntry& entry,
                         std::initializer_list<std::string_view> dtypes);
// kInvalidArgument unless `entry` has exactly `shape`.
absl::Status ExpectShape(std::string_view tensor, const TensorEntry& entry,
                         const std::vector<int64_t>& shape);
// kInvalidArgument unless `entry` has two dimensions, both positive.
absl::Status ExpectMatrix(std::string_view tensor, const TensorEntry& entry);
// F32, F16 or BF16; kInvalidArgument names what was found.
absl::StatusOr<DType> FloatDType(std::string_view tensor, const TensorEntry& entry);

// The first `bytes` bytes of `entry`, which must hold as many, or all of them.
PartPlan Borrow(const TensorEntry& entry, int64_t bytes);
PartPlan Borrow(const TensorEntry& entry);
// Bytes that are made when the layer is loaded.
PartPlan Written(int64_t bytes, std::function<void(std::span<std::byte> out)> write);

// Attaches `prefix`.bias [N] to a plan whose spec.n is set, where there is one.
absl::Status AttachBias(const Context& context, std::string_view prefix, LayerPlan* plan);

// Fills in the layer's name, dialect and canonical size from the spec.
absl::StatusOr<LayerPlan> FinishPlan(std::string_view prefix, std::string_view dialect,
                                     LayerPlan plan);

// "F8_E4M3 [4, 8]", for messages.
std::string Describe(const TensorEntry& entry);

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_DIALECT_H_
