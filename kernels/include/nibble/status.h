// Errors of the kernels library: absl::Status, plus the two macros that pass one on.
//
// Codes used by this library:
//   kInvalidArgument     a dtype, shape, size or value of the caller is wrong; the message names
//                        the field, what was expected and what was received
//   kResourceExhausted   device or host memory does not suffice; the message gives both byte counts
//   kUnavailable         the device is lost (a sticky error); every later call answers the same
//   kUnimplemented       the backend has no kernel for this problem
//   kInternal            a fault of this library
#ifndef NIBBLE_STATUS_H_
#define NIBBLE_STATUS_H_

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble {

using absl::Status;
using absl::StatusOr;

// The message as a standard string_view: distributions build Abseil with a string_view of its own.
inline std::string_view MessageOf(const Status& status) {
  return {status.message().data(), status.message().size()};
}

}  // namespace nibble

#define NIBBLE_STATUS_CONCAT_(a, b) a##b
#define NIBBLE_STATUS_CONCAT(a, b) NIBBLE_STATUS_CONCAT_(a, b)

// Returns the status of `expr` from the enclosing function unless it is OK.
#define NIBBLE_RETURN_IF_ERROR(expr)                                  \
  do {                                                                \
    if (::absl::Status nibble_status = (expr); !nibble_status.ok()) { \
      return nibble_status;                                           \
    }                                                                 \
  } while (false)

// `lhs = *expr`, or returns the status of `expr` from the enclosing function.
#define NIBBLE_ASSIGN_OR_RETURN(lhs, expr) \
  NIBBLE_ASSIGN_OR_RETURN_(NIBBLE_STATUS_CONCAT(nibble_statusor_, __LINE__), lhs, expr)
#define NIBBLE_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = std::move(tmp).value()

#endif  // NIBBLE_STATUS_H_
