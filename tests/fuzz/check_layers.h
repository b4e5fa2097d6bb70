// What holds of every layer of a checkpoint that was opened, whatever its files hold.
#ifndef NIBBLE_TESTS_FUZZ_CHECK_LAYERS_H_
#define NIBBLE_TESTS_FUZZ_CHECK_LAYERS_H_

#include <cstdint>

#include "server/checkpoint/checkpoint.h"

namespace nibble::fuzz {

// Loads every layer and decodes its first and last row. `file_bytes` bounds what a layer may take.
void CheckLayers(const checkpoint::Checkpoint& checkpoint, int64_t file_bytes);

}  // namespace nibble::fuzz

#endif  // NIBBLE_TESTS_FUZZ_CHECK_LAYERS_H_
