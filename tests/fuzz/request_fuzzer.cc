// Requests of the data plane: a byte for the method, a byte for where the transport cuts the
// message, then the message. What is accepted names rows that can be read and results that can be
// written, all of them, and its reply parses.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/v1/linear.pb.h"
#include "server/clock/clock.h"
#include "server/executor/operation.h"
#include "server/service/requests.h"
#include "tests/fuzz/memory_limit.h"
#include "tests/fuzz/require.h"
#include "tests/fuzz/resident_weights.h"

namespace nibble::fuzz {
namespace {

using google::protobuf::Message;
using server::Prepared;
using server::RequestBuilder;
using server::TensorReply;
using server::TensorRequest;

constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 20;
constexpr uint64_t kRegionBytes = uint64_t{16} << 10;

// What the builder refers to, and a shared region.
struct Server {
  Server() : region(*regions.Attach(kRegionBytes)) {}

  ResidentWeights weights;
  std::unique_ptr<server::Clock> clock = server::CreateRealClock();
  server::BufferPool pool{{}, *clock};
  server::SharedRegions regions{kRegionBytes};
  std::shared_ptr<server::SharedRegion> region;
  RequestBuilder builder{weights.store(), weights.engine(), {pool, &regions, kMaxMessageBytes}};
};

grpc::ByteBuffer Cut(std::string_view wire, size_t size) {
  std::vector<grpc::Slice> slices;
  while (!wire.empty()) {
    const size_t taken = size == 0 ? wire.size() : std::min(size, wire.size());
    slices.emplace_back(wire.data(), taken);
    wire.remove_prefix(taken);
  }
  return {slices.data(), slices.size()};
}

// The region's name is not known beforehand: whatever names one, names that.
void NameRegion(const std::string& id, Message* message) {
  if (message->GetDescriptor() == v1::SharedSlice::descriptor()) {
    static_cast<v1::SharedSlice*>(message)->set_region(id);
    return;
  }
  const auto* reflection = message->GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection->ListFields(*message, &fields);
  for (const auto* field : fields) {
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
      NameRegion(id, reflection->MutableMessage(message, field));
    }
  }
}

// Reads every row and writes every result, as the executor does.
void CheckTouches(const Prepared& prepared) {
  const auto job = std::static_pointer_cast<server::Job>(prepared.work.payload);
  const auto& inputs = job->operation->input_row_bytes();
  const auto& outputs = job->operation->output_row_bytes();
  Require(inputs.size() == job->inputs.size() && outputs.size() == job->outputs.size(),
          "a job has the inputs and outputs of its operation");
  const int64_t rows = prepared.work.rows;
  Require(rows >= 0, "the number of rows is not negative");
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<std::byte> row(static_cast<size_t>(inputs[i]));
    for (int64_t at = 0; at < rows; ++at) {
      const auto offset = static_cast<uint64_t>(at * job->inputs[i].row_stride_bytes);
      Require(
          offset <= job->inputs[i].data.size() && row.size() <= job->inputs[i].data.size() - offset,
          "a row lies in its tensor");
      job->inputs[i].data.CopyTo(offset, row.size(), row.data());
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto bytes = static_cast<size_t>(rows * outputs[i]);
    if (bytes > 0) std::memset(job->outputs[i], 0, bytes);
  }
}

template <typename Response>
Response Decode(TensorReply<Response>* reply) {
  grpc::ByteBuffer buffer = reply->Encode();
  grpc::Slice slice;
  Response response;
  if (buffer.Length() == 0) return response;
  Require(buffer.DumpToSingleSlice(&slice).ok(), "a reply has bytes");
  Require(response.ParseFromArray(slice.begin(), static_cast<int>(slice.size())),
          "a reply is its message");
  return response;
}

template <typename Request, typename Response>
void Prepare(const Server& server,
             absl::StatusOr<Prepared> (RequestBuilder::*method)(const TensorRequest<Request>&,
                                                                TensorReply<Response>*) const,
             const grpc::ByteBuffer& wire) {
  TensorRequest<Request> request;
  if (!request.Parse(wire).ok()) return;
  NameRegion(server.region->id(), &request.fields);
  TensorReply<Response> reply;
  const auto prepared = (server.builder.*method)(request, &reply);
  if (!prepared.ok()) {
    Require(!prepared.status().message().empty(), "an error has a message");
    return;
  }
  CheckTouches(*prepared);
  const Response response = Decode(&reply);
  Require(response.request_id() == request.fields.request_id(), "the request's id is returned");
}

void Dequantize(const Server& server, std::string_view wire) {
  v1::DequantizeRequest request;
  if (!request.ParseFromArray(wire.data(), static_cast<int>(wire.size()))) return;
  const auto range = server.builder.ParseDequantize(request);
  if (!range.ok()) return;
  Require(range->row_begin >= 0 && range->row_begin <= range->row_end &&
              range->row_end <= range->weight->weight().spec().n && range->rows_per_chunk > 0,
          "the rows are those of the weight");
  for (int64_t row = range->row_begin; row < range->row_end; row += range->rows_per_chunk) {
    TensorReply<v1::DequantizeResponse> reply;
    const auto prepared = server.builder.DequantizeChunk(*range, row, &reply);
    Require(prepared.ok(), "a chunk of a range that was accepted can be prepared");
    CheckTouches(*prepared);
    Decode(&reply);
  }
}

}  // namespace
}  // namespace nibble::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble::fuzz;
  static const google::protobuf::LogSilencer silencer;
  static const Server server;
  if (size < 2) return 0;
  const std::string_view wire(reinterpret_cast<const char*>(data) + 2, size - 2);
  const MemoryLimit limit(static_cast<int64_t>(size));
  switch (data[0] % 4) {
    case 0:
      Prepare(server, &RequestBuilder::Matmul, Cut(wire, data[1]));
      break;
    case 1:
      Prepare(server, &RequestBuilder::NormQuant, Cut(wire, data[1]));
      break;
    case 2:
      Prepare(server, &RequestBuilder::SiluMulQuant, Cut(wire, data[1]));
      break;
    default:
      Dequantize(server, wire);
  }
  return 0;
}
