// Where the tensors of a request are read from and its results are written to: the message and
// pooled buffers, or shared memory.
#ifndef NIBBLE_SERVER_SERVICE_TENSOR_MEMORY_H_
#define NIBBLE_SERVER_SERVICE_TENSOR_MEMORY_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/executor/operation.h"
#include "server/service/buffer_pool.h"
#include "server/service/shared_memory.h"
#include "server/service/tensor_codec.h"
#include "server/service/tensor_message.h"

namespace nibble::server {

struct TensorInput {
  WireMatrix matrix;
  ByteSpans data;

  RowInput rows() const { return {data, matrix.row_bytes()}; }
};

// A result to be: `cols` columns of `dtype` after the leading dimensions of `like`.
struct ResultShape {
  uint32_t field = 0;  // of the reply
  std::string_view name;
  const v1::Tensor& like;
  int64_t rows = 0;
  int64_t cols = 0;
  DType dtype = DType::kBF16;
};

class TensorMemory {
 public:
  // The pool, and the regions unless null, outlive this. No message is made larger than
  // `max_message_bytes`.
  TensorMemory(BufferPool& results, const SharedRegions* regions, uint64_t max_message_bytes)
      : results_(results), regions_(regions), max_message_bytes_(max_message_bytes) {}

  // Checks `tensor`, whose data is `inline_data` unless it is shared. `job` keeps the region.
  absl::StatusOr<TensorInput> Read(const v1::Tensor& tensor, const ByteSpans& inline_data,
                                   std::string_view name, Job& job) const;

  // Adds a result to `job` and `tensors`: written to `shared`, which is called `shared_name`, or
  // to a buffer of the reply where that is null.
  absl::Status AddResult(const ResultShape& shape, const v1::SharedSlice* shared,
                         std::string_view shared_name, Job& job,
                         std::vector<ResultTensor>& tensors) const;

 private:
  // `tensor` and `field` together name the slice in messages.
  absl::StatusOr<std::span<std::byte>> Slice(const v1::SharedSlice& slice, std::string_view tensor,
                                             std::string_view field, Job& job) const;

  BufferPool& results_;
  const SharedRegions* const regions_;
  const uint64_t max_message_bytes_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_TENSOR_MEMORY_H_
