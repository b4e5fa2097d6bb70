#include "client/cpp/cli/tensor_file.h"

#include <cstring>
#include <limits>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nibble/client_tensor.h"
#include "server/checkpoint/safetensors.h"

namespace nibble::cli {
namespace {

using checkpoint::SafetensorsFile;
using checkpoint::TensorEntry;

absl::StatusOr<TensorEntry> Find(const std::string& path, const std::string& name) {
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  if (const TensorEntry* entry = file->Find(name)) return *entry;
  std::vector<std::string> names;
  for (const auto& [known, entry] : file->tensors()) {
    names.push_back(known);
    if (names.size() == 8) break;
  }
  return absl::InvalidArgumentError(fmt::format(
      "{}: no tensor \"{}\"; it has {} tensors: {}{}", path, name, file->tensors().size(),
      fmt::join(names, ", "), names.size() < file->tensors().size() ? ", ..." : ""));
}

v1::DType WireType(std::string_view container) {
  for (const v1::DType dtype :
       {v1::DTYPE_F32, v1::DTYPE_F16, v1::DTYPE_BF16, v1::DTYPE_F8_E4M3, v1::DTYPE_I8}) {
    if (client::DTypeName(dtype) == container) return dtype;
  }
  return v1::DTYPE_UNSPECIFIED;
}

// After the bytes of `entry` were read: whether they were those of the file.
absl::Status CheckIntact(const TensorEntry& entry) {
  return entry.file == nullptr ? absl::OkStatus() : entry.file->CheckIntact();
}

Extent ExtentOfShape(const int64_t* shape, int dimensions) {
  if (dimensions == 0) return {1, 1};
  Extent extent{1, shape[dimensions - 1]};
  for (int i = 0; i + 1 < dimensions; ++i) extent.rows *= shape[i];
  return extent;
}

}  // namespace

absl::StatusOr<v1::Tensor> ReadTensor(const std::string& path, const std::string& name) {
  const absl::StatusOr<TensorEntry> entry = Find(path, name);
  if (!entry.ok()) return entry.status();
  const v1::DType dtype = WireType(entry->dtype);
  if (dtype == v1::DTYPE_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        fmt::format("{}: tensor \"{}\": expected F32, F16, BF16, F8_E4M3 or I8, received {}", path,
                    name, entry->dtype));
  }
  auto tensor = client::TensorFromBytes(entry->data, entry->shape, dtype);
  if (absl::Status intact = CheckIntact(*entry); !intact.ok()) return intact;
  return tensor;
}

absl::StatusOr<Matrix> ReadMatrix(const std::string& path, const std::string& name) {
  const absl::StatusOr<TensorEntry> entry = Find(path, name);
  if (!entry.ok()) return entry.status();
  if (entry->dtype == "F64") {
    const Extent extent = ExtentOfShape(entry->shape.data(), static_cast<int>(entry->shape.size()));
    Matrix matrix{extent.rows, extent.cols, {}};
    matrix.values.resize(entry->data.size() / sizeof(double));
    if (!entry->data.empty()) {
      std::memcpy(matrix.values.data(), entry->data.data(), entry->data.size());
    }
    if (absl::Status intact = CheckIntact(*entry); !intact.ok()) return intact;
    return matrix;
  }
  const absl::StatusOr<v1::Tensor> tensor = ReadTensor(path, name);
  if (!tensor.ok()) return tensor.status();
  return MatrixOf(*tensor);
}

absl::StatusOr<Matrix> MatrixOf(const v1::Tensor& tensor) {
  const absl::StatusOr<std::vector<float>> values = client::FloatsFromTensor(tensor);
  if (!values.ok()) return values.status();
  const Extent extent = ExtentOf(tensor);
  return Matrix{extent.rows, extent.cols, {values->begin(), values->end()}};
}

Extent ExtentOf(const v1::Tensor& tensor) {
  return ExtentOfShape(tensor.shape().data(), tensor.shape_size());
}

absl::StatusOr<v1::Tensor> RepeatRows(const v1::Tensor& tensor, int64_t rows) {
  const Extent extent = ExtentOf(tensor);
  if (extent.rows == 0 && rows > 0) {
    return absl::InvalidArgumentError(
        fmt::format("--rows: expected 0, as the tensor has no rows, received {}", rows));
  }
  const int64_t row_bytes = extent.cols * client::DTypeBytes(tensor.dtype());
  if (row_bytes > 0 && rows > std::numeric_limits<int32_t>::max() / row_bytes) {
    return absl::InvalidArgumentError(
        fmt::format("--rows: {} rows of {} bytes are more than a message holds", rows, row_bytes));
  }
  v1::Tensor out;
  out.set_dtype(tensor.dtype());
  out.add_shape(rows);
  out.add_shape(extent.cols);
  std::string& data = *out.mutable_data();
  data.reserve(static_cast<size_t>(rows * row_bytes));
  for (int64_t row = 0; row < rows; ++row) {
    data.append(tensor.data(), static_cast<size_t>(row % extent.rows * row_bytes),
                static_cast<size_t>(row_bytes));
  }
  return out;
}

absl::Status WriteTensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::vector<checkpoint::TensorToWrite> writes;
  for (const NamedTensor& named : tensors) {
    const std::string& data = named.tensor.data();
    writes.push_back({named.name,
                      std::string(client::DTypeName(named.tensor.dtype())),
                      {named.tensor.shape().begin(), named.tensor.shape().end()},
                      std::as_bytes(std::span(data.data(), data.size()))});
  }
  return checkpoint::WriteSafetensors(path, writes, {});
}

}  // namespace nibble::cli
