// Messages with tensors as the transport carries them: requests whose tensors stay in the slices
// they arrived in, and replies whose tensors leave from the memory that the executor wrote them to.
#ifndef NIBBLE_SERVER_SERVICE_TENSOR_MESSAGE_H_
#define NIBBLE_SERVER_SERVICE_TENSOR_MESSAGE_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nibble/v1/linear.pb.h"
#include "server/executor/byte_spans.h"
#include "server/service/buffer_pool.h"
#include "server/service/wire_split.h"

namespace nibble::server {

// Numbers of the tensors of a request whose data is kept out of the message.
template <typename Request>
inline constexpr std::array<uint32_t, 0> kTensorFields{};
template <>
inline constexpr std::array<uint32_t, 2> kTensorFields<v1::MatmulRequest>{
    v1::MatmulRequest::kXFieldNumber, v1::MatmulRequest::kXScalesFieldNumber};
template <>
inline constexpr std::array<uint32_t, 2> kTensorFields<v1::NormQuantRequest>{
    v1::NormQuantRequest::kXFieldNumber, v1::NormQuantRequest::kResidualFieldNumber};
template <>
inline constexpr std::array<uint32_t, 1> kTensorFields<v1::SiluMulQuantRequest>{
    v1::SiluMulQuantRequest::kXFieldNumber};

// The data of a request's tensors, and what keeps it in memory.
class RequestData {
 public:
  // Parses `wire` into `fields`; the data of the fields of `layout`, whose spans outlive this, is
  // kept here. kInvalidArgument for bytes that are not such a message.
  absl::Status Parse(const grpc::ByteBuffer& wire, const SplitLayout& layout,
                     google::protobuf::Message& fields);

  // Of a field of the layout; lives as long as this object and the message stay where they are.
  const ByteSpans& Of(uint32_t field) const;

 private:
  SplitLayout layout_;
  std::vector<ByteSpans> data_;
  std::vector<grpc::Slice> slices_;
};

template <typename Message>
struct TensorRequest {
  Message fields;
  RequestData data;

  absl::Status Parse(const grpc::ByteBuffer& wire) {
    return data.Parse(wire, {.tensors = kTensorFields<Message>}, fields);
  }
};

// A tensor of a reply: everything but its data, and the data.
struct ResultTensor {
  uint32_t field = 0;  // of the reply
  v1::Tensor header;
  PooledBuffer data;
  uint64_t data_bytes = 0;
};

template <typename Message>
struct TensorReply {
  Message fields;                     // without the tensors
  std::vector<ResultTensor> tensors;  // in the order of their fields

  // Once.
  grpc::ByteBuffer Encode();
};

// The message of `fields` and `tensors`; the tensors' buffers go with it.
grpc::ByteBuffer EncodeReply(const google::protobuf::Message& fields,
                             std::span<ResultTensor> tensors);
// The same as field `outer_field` of a message that begins with `head`, serialized.
grpc::ByteBuffer EncodeReplyWithin(std::string head, uint32_t outer_field,
                                   const google::protobuf::Message& fields,
                                   std::span<ResultTensor> tensors);

template <typename Message>
grpc::ByteBuffer TensorReply<Message>::Encode() {
  return EncodeReply(fields, tensors);
}

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_TENSOR_MESSAGE_H_
