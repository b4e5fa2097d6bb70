// What the executor runs: an operation that all requests of a batch share, and a job that says
// where one request's rows are read from and written to. Operations take views of device memory and
// a stream, never host data; the executor moves the rows without knowing what they mean.
#ifndef NIBBLE_SERVER_EXECUTOR_OPERATION_H_
#define NIBBLE_SERVER_EXECUTOR_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "nibble/backend.h"
#include "server/executor/byte_spans.h"

namespace nibble::server {

// Device addresses of one batch, rows of all its pieces one after another.
struct LaunchArgs {
  std::vector<void*> inputs;   // one per input_row_bytes(), each [rows, ...]
  std::vector<void*> outputs;  // one per output_row_bytes()
  const void* constant = nullptr;
  int64_t rows = 0;
  // Position of the first row in its request; operations whose requests never share a batch use it.
  int64_t first_row = 0;
  void* workspace = nullptr;
};

// Immutable; used by several threads at once.
class Operation {
 public:
  virtual ~Operation() = default;
  // Bytes of a row of each input and output.
  const std::vector<int64_t>& input_row_bytes() const { return input_row_bytes_; }
  const std::vector<int64_t>& output_row_bytes() const { return output_row_bytes_; }
  // Bytes that are the same for all rows and not resident (an inline gamma); empty for most.
  virtual std::span<const std::byte> constant() const { return {}; }
  // The launch for this many rows, as the selector sees it.
  virtual Problem ProblemFor(int64_t rows) const = 0;
  virtual absl::Status Launch(Device& device, const Choice& choice, const LaunchArgs& args,
                              Stream& stream) const = 0;
  // Whether batches with one key and as many rows launch the same work, on rows that alone differ.
  virtual bool repeats() const { return true; }
  // After a batch has succeeded.
  virtual void CountBatch(int64_t /*rows*/, double /*compute_us*/) const {}

 protected:
  std::vector<int64_t> input_row_bytes_;
  std::vector<int64_t> output_row_bytes_;
};

// Rows of one request, row_stride_bytes apart; a stride of 0 repeats one row.
struct RowInput {
  ByteSpans data;
  int64_t row_stride_bytes = 0;
};

// The payload of a batcher's Work. The owner keeps the memory valid until the work's `done`.
struct Job {
  std::shared_ptr<const Operation> operation;
  std::vector<RowInput> inputs;     // as operation->input_row_bytes()
  std::vector<std::byte*> outputs;  // rows contiguous, as operation->output_row_bytes()
  std::vector<std::shared_ptr<const void>> keep_alive;  // memory that others own too
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_EXECUTOR_OPERATION_H_
