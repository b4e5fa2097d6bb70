// A checkpoint directory as a text, so that an input is short, readable, and mostly a valid
// container whatever is changed in it:
//
//   @config.json                 a text file: the lines up to the next '@'
//   {"quantization_config": {"quant_method": "gptq"}}
//   @model.safetensors           a container: a tensor a line, NAME DTYPE SHAPE FILL
//   layer.qweight I32 16,8 r1
//   layer.scales F16 1,8 v0.5,2
//   @header shard.safetensors 64 r3   a container whose header are the lines that follow, before 64
//   {"t": {"dtype": "U8", ...}}       bytes of data
//
// FILL makes the bytes of a tensor: rSEED pseudo-random; vA,B,... numbers of its type, repeated;
// xHEX bytes, repeated; tTEXT the rest of the line (a SHAPE of - is its length); nf4 and fp4 the
// tables. Offsets and sizes come from types and shapes.
#ifndef NIBBLE_TESTS_FUZZ_CHECKPOINT_RECIPE_H_
#define NIBBLE_TESTS_FUZZ_CHECKPOINT_RECIPE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace nibble::fuzz {

// Name to bytes. Names are file names of letters, digits, '.', '-' and '_'; other ones and what
// goes over kMaxRecipeBytes are left out.
using RecipeFiles = std::map<std::string, std::string, std::less<>>;

inline constexpr int64_t kMaxRecipeBytes = int64_t{256} << 10;

RecipeFiles MakeFiles(std::string_view recipe);

int64_t BytesOf(const RecipeFiles& files);

}  // namespace nibble::fuzz

#endif  // NIBBLE_TESTS_FUZZ_CHECKPOINT_RECIPE_H_
