// Requests of the data plane: a byte for the method, one that is ignored, then the message. What is
// accepted names rows that can be read and results that can be written, all of them.
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

#include "nibble/v1/linear.pb.h"
#include "server/executor/operation.h"
#include "server/service/requests.h"
#include "tests/fuzz/memory_limit.h"
#include "tests/fuzz/require.h"
#include "tests/fuzz/resident_weights.h"

namespace nibble::fuzz {
namespace {

using server::Prepared;
using server::RequestBuilder;

constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 20;

// Reads every row and writes every result, as the executor does.
void CheckTouches(const Prepared& prepared) {
  const auto job = std::static_pointer_cast<server::Job>(prepared.work.payload);
  const auto& inputs = job->operation->input_row_bytes();
  const auto& outputs = job->operation->output_row_bytes();
  Require(inputs.size() == job->inputs.size() && outputs.size() == job->outputs.size(),
          "a job has the inputs and outputs of its operation");
  Require(prepared.work.rows >= 0, "the number of rows is not negative");
  unsigned sum = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (int64_t row = 0; row < prepared.work.rows; ++row) {
      const std::byte* data = job->inputs[i].data + row * job->inputs[i].row_stride_bytes;
      for (int64_t at = 0; at < inputs[i]; ++at) sum += static_cast<unsigned>(data[at]);
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto bytes = static_cast<size_t>(prepared.work.rows * outputs[i]);
    if (bytes > 0) std::memset(job->outputs[i], static_cast<int>(sum & 0xFF), bytes);
  }
}

template <typename Request, typename Response>
void Prepare(const RequestBuilder& builder,
             absl::StatusOr<Prepared> (RequestBuilder::*method)(const Request&, Response*) const,
             std::string_view wire) {
  Request request;
  if (!request.ParseFromArray(wire.data(), static_cast<int>(wire.size()))) return;
  Response response;
  const auto prepared = (builder.*method)(request, &response);
  if (!prepared.ok()) {
    Require(!prepared.status().message().empty(), "an error has a message");
    return;
  }
  CheckTouches(*prepared);
  Require(response.request_id() == request.request_id(), "the request's id is returned");
  Require(response.ByteSizeLong() <= kMaxMessageBytes + 4096, "a response fits a message");
}

void Dequantize(const RequestBuilder& builder, std::string_view wire) {
  v1::DequantizeRequest request;
  if (!request.ParseFromArray(wire.data(), static_cast<int>(wire.size()))) return;
  const auto range = builder.ParseDequantize(request);
  if (!range.ok()) return;
  Require(range->row_begin >= 0 && range->row_begin <= range->row_end &&
              range->row_end <= range->weight->weight().spec().n && range->rows_per_chunk > 0,
          "the rows are those of the weight");
  for (int64_t row = range->row_begin; row < range->row_end; row += range->rows_per_chunk) {
    v1::DequantizeResponse response;
    const auto prepared = builder.DequantizeChunk(*range, row, &response);
    Require(prepared.ok(), "a chunk of a range that was accepted can be prepared");
    CheckTouches(*prepared);
  }
}

}  // namespace
}  // namespace nibble::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble::fuzz;
  static const google::protobuf::LogSilencer silencer;
  static const ResidentWeights weights;
  static const RequestBuilder builder(weights.store(), weights.engine(), kMaxMessageBytes);
  if (size < 2) return 0;
  const std::string_view wire(reinterpret_cast<const char*>(data) + 2, size - 2);
  const MemoryLimit limit(static_cast<int64_t>(size));
  switch (data[0] % 4) {
    case 0:
      Prepare(builder, &RequestBuilder::Matmul, wire);
      break;
    case 1:
      Prepare(builder, &RequestBuilder::NormQuant, wire);
      break;
    case 2:
      Prepare(builder, &RequestBuilder::SiluMulQuant, wire);
      break;
    default:
      Dequantize(builder, wire);
  }
  return 0;
}
