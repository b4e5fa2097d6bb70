// Tensors in safetensors files, as the commands read and write them.
#ifndef NIBBLE_CLIENT_CLI_TENSOR_FILE_H_
#define NIBBLE_CLIENT_CLI_TENSOR_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nibble/v1/linear.pb.h"

namespace nibble::cli {

// Tensor `name` of the file. kInvalidArgument: no such file or tensor (the message lists those
// there are), or a type that the wire does not have.
absl::StatusOr<v1::Tensor> ReadTensor(const std::string& path, const std::string& name);

// A matrix of any float type, F64 too, with leading dimensions flattened; a vector is one row.
struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<double> values;

  double at(int64_t row, int64_t col) const {
    return values[static_cast<size_t>(row * cols + col)];
  }
};
absl::StatusOr<Matrix> MatrixOf(const v1::Tensor& tensor);
absl::StatusOr<Matrix> ReadMatrix(const std::string& path, const std::string& name);

// Rows and columns of a tensor with leading dimensions flattened; a vector is one row.
struct Extent {
  int64_t rows = 0;
  int64_t cols = 0;
};
Extent ExtentOf(const v1::Tensor& tensor);

// The first `rows` rows as [rows, cols], starting over at row 0 past the last.
absl::StatusOr<v1::Tensor> RepeatRows(const v1::Tensor& tensor, int64_t rows);

struct NamedTensor {
  std::string name;
  const v1::Tensor& tensor;
};
absl::Status WriteTensors(const std::string& path, const std::vector<NamedTensor>& tensors);

}  // namespace nibble::cli

#endif  // NIBBLE_CLIENT_CLI_TENSOR_FILE_H_
