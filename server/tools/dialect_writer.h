// A quantized layer as the tensors of a public dialect, and the dialect's part of config.json.
#ifndef NIBBLE_SERVER_TOOLS_DIALECT_WRITER_H_
#define NIBBLE_SERVER_TOOLS_DIALECT_WRITER_H_

#include <string>
#include <vector>

#include "nibble/quantize.h"
#include "nibble/weight.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/safetensors_writer.h"

namespace nibble::tools {

struct OutputTensor {
  checkpoint::TensorDeclaration declaration;
  HostBytes data;
};

// What the configuration says of the whole checkpoint.
struct DialectConfig {
  QuantizeTarget target;
  DType model_dtype = DType::kBF16;
  std::vector<std::string> kept;  // linear layers that are not quantized
};

class DialectWriter {
 public:
  virtual ~DialectWriter() = default;
  // Why a layer of this spec cannot be written, empty where it can.
  virtual std::string Refusal(const WeightSpec& spec) const = 0;
  // The tensors of layer `prefix`, its bias left out: the same names, types and shapes for any
  // weight of the spec.
  virtual std::vector<checkpoint::TensorDeclaration> Declare(const std::string& prefix,
                                                             const WeightSpec& spec) const = 0;
  virtual std::vector<OutputTensor> Write(const std::string& prefix,
                                          const CanonicalWeight& weight) const = 0;
  virtual nlohmann::ordered_json Config(const DialectConfig& config) const = 0;
};

// The dialect that a format is written in.
const DialectWriter& DialectOf(Format format);

const DialectWriter& BitsandbytesWriter();
const DialectWriter& CompressedTensorsWriter();

}  // namespace nibble::tools

#endif  // NIBBLE_SERVER_TOOLS_DIALECT_WRITER_H_
