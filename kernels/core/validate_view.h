// Checks of matrix views that every op shares. Errors are kInvalidArgument and start with the
// argument's name.
#ifndef NIBBLE_CORE_VALIDATE_VIEW_H_
#define NIBBLE_CORE_VALIDATE_VIEW_H_

#include <cstdint>
#include <string_view>

#include "nibble/status.h"
#include "nibble/tensor.h"

namespace nibble::core {

// A view under the name that messages give it.
struct NamedView {
  std::string_view name;
  ConstMatrixView view;
  bool writable = false;  // a result: rows may not repeat
};

NamedView Input(std::string_view name, const ConstMatrixView& view);
NamedView Result(std::string_view name, const MatrixView& view);

// Non-negative sizes, shape [rows, cols], memory unless there are no elements, consecutive rows
// that do not run into each other (an input may repeat one row: row_stride 0), extent below 2^63
// bytes.
Status CheckView(const NamedView& named, int64_t rows, int64_t cols);

// The dtype is F32, F16 or BF16.
Status CheckFloatDType(const NamedView& named);
Status CheckDType(const NamedView& named, DType expected);

// The view is not given.
Status CheckAbsent(const NamedView& named, std::string_view when);

// The two share no byte. Column ranges of one matrix (equal row strides) do not overlap when their
// columns do not. Call after CheckView.
Status CheckDisjoint(const NamedView& result, const NamedView& other);

}  // namespace nibble::core

#endif  // NIBBLE_CORE_VALIDATE_VIEW_H_
