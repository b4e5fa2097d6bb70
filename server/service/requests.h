// Requests of the data plane, checked against the weights and turned into work for the engine. The
// unary methods and the stream share it.
#ifndef NIBBLE_SERVER_SERVICE_REQUESTS_H_
#define NIBBLE_SERVER_SERVICE_REQUESTS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "nibble/v1/linear.pb.h"
#include "server/batcher/batcher.h"
#include "server/executor/engine.h"
#include "server/service/tensor_memory.h"
#include "server/service/tensor_message.h"
#include "server/weight_store/weight_store.h"

namespace nibble::server {

// A request that can be submitted. Request and reply must outlive the work.
struct Prepared {
  size_t device_index = 0;
  WeightHandle weight;  // null where no resident weight takes part
  Work work;            // without deadline and done; rows of 0: there is nothing to run
};

class RequestBuilder {
 public:
  // Store and engine, and what `memory` refers to, outlive the builder.
  RequestBuilder(const WeightStore& store, const Engine& engine, const TensorMemory& memory)
      : store_(store), engine_(engine), memory_(memory) {}

  // Each checks every field, allocates the results in `reply` and names the place that results are
  // written to. Errors name the field, the expected and the received value.
  absl::StatusOr<Prepared> Matmul(const TensorRequest<v1::MatmulRequest>& request,
                                  TensorReply<v1::MatmulResponse>* reply) const;
  absl::StatusOr<Prepared> NormQuant(const TensorRequest<v1::NormQuantRequest>& request,
                                     TensorReply<v1::NormQuantResponse>* reply) const;
  absl::StatusOr<Prepared> SiluMulQuant(const TensorRequest<v1::SiluMulQuantRequest>& request,
                                        TensorReply<v1::SiluMulQuantResponse>* reply) const;

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
                                           TensorReply<v1::DequantizeResponse>* reply) const;

 private:
  const WeightStore& store_;
  const Engine& engine_;
  const TensorMemory memory_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_REQUESTS_H_
