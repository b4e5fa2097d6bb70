// A mutator for inputs of lines of words: whole lines and numbers change as often as bytes do.
#ifndef NIBBLE_TESTS_FUZZ_MUTATE_LINES_H_
#define NIBBLE_TESTS_FUZZ_MUTATE_LINES_H_

#include <cstddef>
#include <cstdint>

namespace nibble::fuzz {

// As LLVMFuzzerCustomMutator.
size_t MutateLines(uint8_t* data, size_t size, size_t max_size, unsigned seed);

}  // namespace nibble::fuzz

#endif  // NIBBLE_TESTS_FUZZ_MUTATE_LINES_H_
