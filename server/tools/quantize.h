// Quantizes a checkpoint directory into another one, in the public dialect of its format:
// bitsandbytes for nf4 and fp4, compressed-tensors for int4 ("pack-quantized") and fp8
// ("float-quantized").
#ifndef NIBBLE_SERVER_TOOLS_QUANTIZE_H_
#define NIBBLE_SERVER_TOOLS_QUANTIZE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::tools {

struct QuantizeRequest {
  std::string input;
  std::string output;
  std::string format;                // "nf4+block=64+nested": the text of ParseQuantizeTarget
  std::vector<std::string> include;  // patterns of layer names; none: all but output heads
  std::vector<std::string> exclude;  // patterns; win over include
  int threads = 0;                   // 0: as many as the machine runs at once
  int64_t max_shard_bytes = 5'000'000'000;
  bool force = false;                            // replace a checkpoint that is at `output`
  const std::atomic<bool>* cancelled = nullptr;  // looked at before each tensor; may be null
};

struct LayerReport {
  std::string name;
  std::string format;  // "nf4 4096x14336 block 64"
  int64_t n = 0;
  int64_t k = 0;
  int64_t bytes_before = 0;
  int64_t bytes_after = 0;
  // Of the decoded weight against the original one.
  double relative_error = 0;  // Frobenius norm of the difference over that of the original
  double max_error = 0;       // largest magnitude of a difference
};

struct QuantizeReport {
  std::vector<LayerReport> layers;  // sorted by name
  std::vector<std::string> kept;    // linear layers that were left as they are
  int64_t copied_tensors = 0;       // all tensors that were copied, those of kept layers included
  int64_t bytes_before = 0;         // of all tensors
  int64_t bytes_after = 0;
  std::vector<std::string> files;    // safetensors files, in order
  std::vector<std::string> notices;  // what was left out or deserves a look, a sentence each
};

using QuantizeProgress =
    std::function<void(int64_t bytes_done, int64_t bytes_total, const std::string& layer)>;

// Writes to a directory beside `output` and renames it, so that `output` is complete or is not
// there. Tensors are read, quantized and written one layer at a time. Tensors of other layers are
// copied, as are the directory's other files; config.json gets its quantization_config. `progress`
// is called on this thread.
//
// kInvalidArgument: a malformed input, an input that is quantized already, a wrong option.
// kAlreadyExists: something is at `output`, and `force` is not set or it is no checkpoint.
// kUnavailable: the output cannot be written.
// kCancelled: `cancelled` was set before the output was complete; nothing of it is left.
absl::StatusOr<QuantizeReport> QuantizeCheckpoint(const QuantizeRequest& request,
                                                  const QuantizeProgress& progress);

}  // namespace nibble::tools

#endif  // NIBBLE_SERVER_TOOLS_QUANTIZE_H_
