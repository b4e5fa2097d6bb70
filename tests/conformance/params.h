// The parameter that most suites share: one backend with one weight variant.
#ifndef NIBBLE_TESTS_CONFORMANCE_PARAMS_H_
#define NIBBLE_TESTS_CONFORMANCE_PARAMS_H_

#include <string>
#include <tuple>

#include "gtest/gtest.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/weights.h"

namespace nibble::conformance {

using BackendAndVariant = std::tuple<Backend, Variant>;

inline std::string NameOf(const ::testing::TestParamInfo<BackendAndVariant>& param) {
  return std::get<0>(param.param).name + "_" + std::get<1>(param.param).name;
}

}  // namespace nibble::conformance

#endif  // NIBBLE_TESTS_CONFORMANCE_PARAMS_H_
