// The files of a checkpoint directory: configuration, shards and their index.
#ifndef NIBBLE_SERVER_CHECKPOINT_DIRECTORY_H_
#define NIBBLE_SERVER_CHECKPOINT_DIRECTORY_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/checkpoint/dialect.h"
#include "server/checkpoint/quant_config.h"

namespace nibble::checkpoint {

// kNotFound: `directory` is none. Files that are absent give empty texts.
absl::StatusOr<ConfigTexts> ReadConfigTexts(const std::string& directory);

// Every tensor, over all files. With model.safetensors.index.json only the files that it lists, and
// of each file only the tensors that it assigns to it; otherwise one file. kNotFound: there is no
// safetensors file. kInvalidArgument: malformed, or several files without an index. kUnimplemented:
// files of another container.
absl::StatusOr<TensorMap> ReadDirectory(const std::string& directory, const QuantConfig& config,
                                        Notices* notices);

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_DIRECTORY_H_
