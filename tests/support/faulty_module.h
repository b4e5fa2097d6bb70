// How tests make the device of faulty_module.cc fail: by the rows of a matmul.
#ifndef NIBBLE_TESTS_SUPPORT_FAULTY_MODULE_H_
#define NIBBLE_TESTS_SUPPORT_FAULTY_MODULE_H_

#include <cstdint>

namespace nibble::testing {

inline constexpr int64_t kRowsThatFail = 12;  // this batch alone
inline constexpr int64_t kRowsThatLoseTheDevice = 13;
inline constexpr int64_t kRowsThatHang = 14;

}  // namespace nibble::testing

#endif  // NIBBLE_TESTS_SUPPORT_FAULTY_MODULE_H_
