#include "server/service/tensor_memory.h"

#include <limits>
#include <utility>

#include "fmt/format.h"
#include "nibble/status.h"

namespace nibble::server {

absl::StatusOr<std::span<std::byte>> TensorMemory::Slice(const v1::SharedSlice& slice,
                                                         std::string_view tensor,
                                                         std::string_view field, Job& job) const {
  if (regions_ == nullptr) {
    return absl::InvalidArgumentError(fmt::format(
        "{}{}: expected none, the server runs without --allow-shared-memory; received one", tensor,
        field));
  }
  const auto region = regions_->Find(slice.region());
  if (!region.ok()) {
    return absl::NotFoundError(fmt::format("{}{}.{}", tensor, field, MessageOf(region.status())));
  }
  const std::span<std::byte> bytes = (*region)->bytes();
  if (slice.offset() > bytes.size() || slice.length() > bytes.size() - slice.offset()) {
    return absl::InvalidArgumentError(
        fmt::format("{}{}: expected a slice within the region's {} bytes; received offset {} and "
                    "length {}",
                    tensor, field, bytes.size(), slice.offset(), slice.length()));
  }
  job.keep_alive.push_back(*region);
  return bytes.subspan(slice.offset(), slice.length());
}

absl::StatusOr<TensorInput> TensorMemory::Read(const v1::Tensor& tensor,
                                               const ByteSpans& inline_data, std::string_view name,
                                               Job& job) const {
  TensorInput input;
  input.data = inline_data;
  if (tensor.has_shared()) {
    if (!inline_data.empty()) {
      return absl::InvalidArgumentError(
          fmt::format("{}: expected data or shared; received both", name));
    }
    NIBBLE_ASSIGN_OR_RETURN(const std::span<std::byte> bytes,
                            Slice(tensor.shared(), name, ".shared", job));
    input.data = ByteSpans(bytes);
  }
  NIBBLE_ASSIGN_OR_RETURN(input.matrix, ParseMatrix(tensor, input.data.size(), name));
  return input;
}

absl::Status TensorMemory::AddResult(const ResultShape& shape, const v1::SharedSlice* shared,
                                     std::string_view shared_name, Job& job,
                                     std::vector<ResultTensor>& tensors) const {
  const uint64_t limit =
      shared == nullptr ? max_message_bytes_ : std::numeric_limits<uint64_t>::max();
  ResultTensor result;
  result.field = shape.field;
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t bytes,
                          ShapeResult(shape.like, shape.rows, shape.cols, shape.dtype, limit,
                                      shape.name, &result.header));
  if (shared == nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(result.data, results_.Take(bytes));
    result.data_bytes = bytes;
    job.outputs.push_back(result.data.data());
  } else {
    NIBBLE_ASSIGN_OR_RETURN(const std::span<std::byte> place, Slice(*shared, shared_name, "", job));
    if (place.size() < bytes) {
      return absl::InvalidArgumentError(
          fmt::format("{}.length: expected at least the {} bytes of "
                      "{}; received {}",
                      shared_name, bytes, shape.name, place.size()));
    }
    *result.header.mutable_shared() = *shared;
    result.header.mutable_shared()->set_length(bytes);
    job.outputs.push_back(place.data());
  }
  tensors.push_back(std::move(result));
  return absl::OkStatus();
}

}  // namespace nibble::server
