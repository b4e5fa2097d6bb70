#include "tests/fuzz/resident_weights.h"

#include <cstdlib>
#include <string>

#include "tests/fuzz/require.h"

namespace nibble::fuzz {

server::Batcher& IdleEngine::batcher(size_t) {
  Require(false, "no work is submitted");
  std::abort();
}

ResidentWeights::ResidentWeights()
    : device_("cpu:0", uint64_t{1} << 30), store_({&device_}, nullptr) {
  Load("nf4", {.format = Format::kNF4, .n = 24, .k = 64});
  Load("int4",
       {.format = Format::kInt4, .n = 16, .k = 64, .group_size = 32, .has_zero_points = true});
  Load("fp8", {.format = Format::kFP8, .n = 8, .k = 160, .has_input_scale = true});
  Load("dense", {.format = Format::kDense, .n = 6, .k = 64});
  Load("norm", {.format = Format::kDense, .n = 1, .k = 64});
}

void ResidentWeights::Load(std::string_view name, const WeightSpec& spec) {
  auto transaction = store_.Begin(name, {{std::string(name), spec}}, "");
  Require(transaction.ok(), "a weight can be planned");
  CanonicalWeight weight;
  weight.spec = spec;
  Require((*transaction)->Add(name, weight).ok(), "a weight can be added");
  Require((*transaction)->Commit().ok(), "a weight can be committed");
}

}  // namespace nibble::fuzz
