#include "client/cpp/load/operation.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <array>
#include <charconv>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "nibble/v1/linear.pb.h"

namespace nibble::load {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr uint32_t BytesTag(int field) {
  return WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

// Appends the tag and the length of a field whose bytes follow.
void AppendBytesHead(int field, size_t bytes, std::string& out) {
  google::protobuf::io::StringOutputStream stream(&out);
  CodedOutputStream coded(&stream);
  coded.WriteTag(BytesTag(field));
  coded.WriteVarint64(bytes);
}

// `head` and then `data`, which is not copied.
grpc::ByteBuffer Join(const std::string& head, std::span<const char> data) {
  const std::array<grpc::Slice, 2> slices = {
      grpc::Slice(head), grpc::Slice(data.data(), data.size(), grpc::Slice::STATIC_SLICE)};
  return grpc::ByteBuffer(slices.data(), data.empty() ? 1 : slices.size());
}

// What a reply says, except the bytes of y where they are not asked for.
struct Reply {
  int64_t code = 0;  // of the error of a stream's reply
  std::string message;
  bool has_result = false;
  v1::ExecutionInfo info;
  v1::Tensor y;  // without data
  int64_t y_bytes = 0;
  std::string* keep_y = nullptr;
};

// Calls `field(tag, length)` for every length-delimited field; it reads that many bytes. Other
// fields are skipped. False where the bytes are no message.
template <typename Field>
bool ReadFields(CodedInputStream& in, const Field& field) {
  while (const uint32_t tag = in.ReadTag()) {
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&in, tag)) return false;
      continue;
    }
    uint32_t bytes = 0;
    if (!in.ReadVarint32(&bytes) || bytes > static_cast<uint32_t>(INT32_MAX)) return false;
    if (!field(tag, static_cast<int>(bytes))) return false;
  }
  return in.ConsumedEntireMessage();
}

template <typename Field>
bool ReadSubmessage(CodedInputStream& in, int bytes, const Field& field) {
  const CodedInputStream::Limit limit = in.PushLimit(bytes);
  const bool read = ReadFields(in, field);
  in.PopLimit(limit);
  return read;
}

template <typename Message>
bool MergeBytes(CodedInputStream& in, int bytes, Message& message) {
  std::string text;
  return in.ReadString(&text, bytes) && message.MergeFromString(text);
}

// The data alone may be large; dtype and shape come before it and are small.
bool ReadTensor(CodedInputStream& in, int bytes, Reply& reply) {
  const CodedInputStream::Limit limit = in.PushLimit(bytes);
  std::string rest;
  bool read = true;
  while (read) {
    const uint32_t tag = in.ReadTag();
    if (tag == 0) break;
    if (tag == BytesTag(v1::Tensor::kDataFieldNumber)) {
      uint32_t size = 0;
      read = in.ReadVarint32(&size) && size <= static_cast<uint32_t>(INT32_MAX);
      if (!read) break;
      reply.y_bytes = size;
      read = reply.keep_y != nullptr ? in.ReadString(reply.keep_y, static_cast<int>(size))
                                     : in.Skip(static_cast<int>(size));
    } else {
      google::protobuf::io::StringOutputStream stream(&rest);
      CodedOutputStream copy(&stream);
      read = WireFormatLite::SkipField(&in, tag, &copy);
    }
  }
  read = read && in.ConsumedEntireMessage() && reply.y.MergeFromString(rest);
  in.PopLimit(limit);
  return read;
}

bool ReadMatmulField(CodedInputStream& in, uint32_t tag, int bytes, Reply& reply) {
  if (tag == BytesTag(v1::MatmulResponse::kInfoFieldNumber)) {
    return MergeBytes(in, bytes, reply.info);
  }
  if (tag == BytesTag(v1::MatmulResponse::kYFieldNumber)) return ReadTensor(in, bytes, reply);
  return in.Skip(bytes);
}

bool ReadStreamField(CodedInputStream& in, uint32_t tag, int bytes, Reply& reply) {
  if (tag == BytesTag(v1::MatmulStreamResponse::kErrorFieldNumber)) {
    v1::RequestError error;
    if (!MergeBytes(in, bytes, error)) return false;
    reply.code = error.code();
    reply.message = error.message();
    return true;
  }
  if (tag == BytesTag(v1::MatmulStreamResponse::kResultFieldNumber)) {
    reply.has_result = true;
    return ReadSubmessage(in, bytes, [&](uint32_t inner, int size) {
      return ReadMatmulField(in, inner, size, reply);
    });
  }
  return in.Skip(bytes);
}

std::string ShapeFault(const v1::Tensor& y, const Draw& draw, int64_t n) {
  if (y.shape_size() == 2 && y.shape(0) == draw.rows && y.shape(1) == n) return "";
  std::string received;
  for (const int64_t dim : y.shape()) {
    received += fmt::format("{}{}", received.empty() ? "" : ", ", dim);
  }
  return fmt::format("y.shape: expected [{}, {}], received [{}]", draw.rows, n, received);
}

}  // namespace

std::string MatmulOperation::method() const {
  return stream_ ? "/nibble.v1.Linear/MatmulStream" : "/nibble.v1.Linear/Matmul";
}

grpc::ByteBuffer MatmulOperation::Encode(Exchange& exchange) const {
  const Draw& draw = exchange.draw;
  const WorkloadOptions& options = workload_.options();
  const Layer& layer = workload_.layers()[draw.layer];
  const std::span<const char> x = workload_.InputOf(draw);
  v1::MatmulRequest request;
  request.set_weight(layer.name);
  request.set_output_dtype(options.output_dtype);
  request.set_activation_quant(options.activation_quant);
  if (stream_) request.set_request_id(std::to_string(exchange.number()));
  v1::Tensor tensor;
  tensor.set_dtype(options.dtype);
  tensor.add_shape(draw.rows);
  tensor.add_shape(layer.k);
  exchange.answer.request_bytes = static_cast<int64_t>(x.size());
  if (shared_ != nullptr) {
    const int64_t row_bytes = layer.k * client::DTypeBytes(options.dtype);
    v1::SharedSlice& from = *tensor.mutable_shared();
    from.set_region(shared_->region);
    from.set_offset(
        static_cast<uint64_t>(shared_->input_offset.at(layer.k) + draw.first_row * row_bytes));
    from.set_length(x.size());
    v1::SharedSlice& into = *request.mutable_y_memory();
    into.set_region(shared_->region);
    into.set_offset(static_cast<uint64_t>(
        shared_->output_offset + static_cast<int64_t>(exchange.number()) * shared_->output_stride));
    into.set_length(static_cast<uint64_t>(workload_.OutputBytes(draw)));
    *request.mutable_x() = tensor;
    const std::string message = request.SerializeAsString();
    exchange.answer.request_bytes += static_cast<int64_t>(message.size());
    return Join(message, {});
  }
  // x is the last field of the request and data the last of x: all before them is serialized, and
  // the activations follow from where they lie.
  std::string x_head = tensor.SerializeAsString();
  AppendBytesHead(v1::Tensor::kDataFieldNumber, x.size(), x_head);
  std::string head = request.SerializeAsString();
  AppendBytesHead(v1::MatmulRequest::kXFieldNumber, x_head.size() + x.size(), head);
  head += x_head;
  exchange.answer.request_bytes += static_cast<int64_t>(head.size());
  return Join(head, x);
}

void MatmulOperation::Decode(grpc::ByteBuffer& buffer, Exchange& exchange) const {
  const Draw& draw = exchange.draw;
  Answer& answer = exchange.answer;
  answer.reply_bytes = static_cast<int64_t>(buffer.Length());
  Reply reply;
  if (draw.check) reply.keep_y = &answer.y;
  grpc::ProtoBufferReader reader(&buffer);
  CodedInputStream in(&reader);
  const bool read = ReadFields(in, [&](uint32_t tag, int bytes) {
    return stream_ ? ReadStreamField(in, tag, bytes, reply)
                   : ReadMatmulField(in, tag, bytes, reply);
  });
  if (!read) {
    answer.fault = "the reply is no message";
    return;
  }
  if (reply.code != 0) {
    answer.code = absl::StatusCodeToString(static_cast<absl::StatusCode>(reply.code));
    answer.message = reply.message;
    return;
  }
  answer.kernel = reply.info.kernel();
  answer.device = reply.info.device();
  answer.batch_rows = reply.info.batch_rows();
  answer.queue_us = reply.info.queue_us();
  answer.compute_us = reply.info.compute_us();
  const int64_t expected_bytes = workload_.OutputBytes(draw);
  if (shared_ != nullptr) {
    reply.y_bytes = static_cast<int64_t>(reply.y.shared().length());
    answer.reply_bytes += reply.y_bytes;
    if (draw.check && reply.y_bytes == expected_bytes) {
      answer.y.assign(shared_->memory + shared_->output_offset +
                          static_cast<int64_t>(exchange.number()) * shared_->output_stride,
                      static_cast<size_t>(expected_bytes));
    }
  }
  answer.fault = ShapeFault(reply.y, draw, workload_.layers()[draw.layer].n);
  if (answer.fault.empty() && reply.y.dtype() != workload_.output_dtype()) {
    answer.fault = fmt::format("y.dtype: expected {}, received {}",
                               client::DTypeName(workload_.output_dtype()),
                               client::DTypeName(reply.y.dtype()));
  }
  if (answer.fault.empty() && reply.y_bytes != expected_bytes) {
    answer.fault = fmt::format("y: expected {} bytes, received {}", expected_bytes, reply.y_bytes);
  }
}

int64_t ExchangeNumberOf(grpc::ByteBuffer& reply) {
  grpc::ProtoBufferReader reader(&reply);
  CodedInputStream in(&reader);
  int64_t number = -1;
  ReadFields(in, [&](uint32_t tag, int bytes) {
    if (tag != BytesTag(v1::MatmulStreamResponse::kRequestIdFieldNumber)) return in.Skip(bytes);
    std::string text;
    if (!in.ReadString(&text, bytes)) return false;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) number = -1;
    return false;  // the rest is not needed
  });
  return number;
}

std::string EchoOperation::method() const { return "/nibble.v1.Linear/Echo"; }

grpc::ByteBuffer EchoOperation::Encode(Exchange& exchange) const {
  const std::span<const char> payload = workload_.InputOf(exchange.draw);
  v1::EchoRequest request;
  request.set_response_bytes(static_cast<uint64_t>(workload_.OutputBytes(exchange.draw)));
  // The order of fields is free; this one lets the payload come last.
  std::string head = request.SerializeAsString();
  AppendBytesHead(v1::EchoRequest::kPayloadFieldNumber, payload.size(), head);
  exchange.answer.request_bytes = static_cast<int64_t>(head.size() + payload.size());
  return Join(head, payload);
}

void EchoOperation::Decode(grpc::ByteBuffer& buffer, Exchange& exchange) const {
  Answer& answer = exchange.answer;
  answer.reply_bytes = static_cast<int64_t>(buffer.Length());
  grpc::ProtoBufferReader reader(&buffer);
  CodedInputStream in(&reader);
  int64_t payload_bytes = 0;
  const bool read = ReadFields(in, [&](uint32_t tag, int bytes) {
    if (tag == BytesTag(v1::EchoResponse::kPayloadFieldNumber)) payload_bytes = bytes;
    return in.Skip(bytes);
  });
  if (!read) {
    answer.fault = "the reply is no message";
  } else if (payload_bytes != workload_.OutputBytes(exchange.draw)) {
    answer.fault = fmt::format("payload: expected {} bytes, received {}",
                               workload_.OutputBytes(exchange.draw), payload_bytes);
  }
}

}  // namespace nibble::load
