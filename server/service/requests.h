// Requests of the data plane, checked against the weights and turned into work for the engine. The
// unary methods and the stream share it.
#ifndef NIBBLE_SERVER_SERVICE_REQUESTS_H_
#define NIBBLE_SERVER_SERVICE_REQUESTS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "nibble/v1/linear.pb.h"
#include "server/batcher/batcher.h"
#include "server/executor/engine.h"
#include "server/weight_store/weight_store.h"

namespace nibble::server {

// A request that can be submitted. Request and response must outlive the work.
struct Prepared {
  size_t device_index = 0;
  WeightHandle weight;  // null where no resident weight takes part
  Work work;            // without deadline and done; rows of 0: there is nothing to run
};

class RequestBuilder {
 public:
  // Store and engine outlive the builder. No message is made larger than `max_message_bytes`.
  RequestBuilder(const WeightStore& store, const Engine& engine, uint64_t max_message_bytes)
      : store_(store), engine_(engine), max_message_bytes_(max_message_bytes) {}

  // Each checks every field, allocates the results in `response` and names the place that results
  // are written to. Errors name the field, the expected and the received value.
  absl::StatusOr<Prepared> Matmul(const v1::MatmulRequest& request,
                                  v1::MatmulResponse* response) const;
  absl::StatusOr<Prepared> NormQuant(const v1::NormQuantRequest& request,
                                     v1::NormQuantResponse* response) const;
  absl::StatusOr<Prepared> SiluMulQuant(const v1::SiluMulQuantRequest& request,
                                        v1::SiluMulQuantResponse* response) const;

  // The range of a Dequantize call, and the work of one chunk of it.
  struct DequantizeRange {
    WeightHandle weight;
    int64_t row_begin = 0;
    int64_t row_end = 0;
    int64_t rows_per_chunk = 1;
    DType dtype = DType::kBF16;
  };
  absl::StatusOr<DequantizeRange> ParseDequantize(const v1::DequantizeRequest& request) const;
  absl::StatusOr<Prepared> DequantizeChunk(const DequantizeRange& range, int64_t row_begin,
                                           v1::DequantizeResponse* response) const;

 private:
  const WeightStore& store_;
  const Engine& engine_;
  const uint64_t max_message_bytes_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_REQUESTS_H_
