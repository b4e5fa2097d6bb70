#include "server/service/tensor_message.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "nibble/status.h"
#include "server/service/wire_split.h"

namespace nibble::server {
namespace {

absl::Status Malformed(const google::protobuf::Message& fields, size_t bytes) {
  return absl::InvalidArgumentError(
      fmt::format("request: expected a {}; received {} bytes that are none",
                  std::string(fields.GetDescriptor()->full_name()), bytes));
}

// The data within a message that protobuf has parsed as a whole.
std::vector<ByteSpans> DataWithin(const google::protobuf::Message& fields,
                                  const SplitLayout& layout) {
  const auto* type = fields.GetDescriptor();
  const auto* reflection = fields.GetReflection();
  std::vector<ByteSpans> data;
  for (const uint32_t number : layout.tensors) {
    const auto& tensor = static_cast<const v1::Tensor&>(
        reflection->GetMessage(fields, type->FindFieldByNumber(static_cast<int>(number))));
    data.emplace_back(std::as_bytes(std::span(tensor.data())));
  }
  for (const uint32_t number : layout.bytes) {
    std::string unused;
    const std::string& bytes = reflection->GetStringReference(
        fields, type->FindFieldByNumber(static_cast<int>(number)), &unused);
    data.emplace_back(std::as_bytes(std::span(bytes)));
  }
  return data;
}

// A message under construction: copied bytes and slices of buffers.
class SliceWriter {
 public:
  std::string& copied() { return copied_; }
  void Add(PooledBuffer buffer, uint64_t bytes) {
    Flush();
    std::byte* data = buffer.data();
    slices_.emplace_back(data, bytes, &PooledBuffer::Return, std::move(buffer).Release());
  }
  grpc::ByteBuffer Finish() && {
    Flush();
    return {slices_.data(), slices_.size()};
  }

 private:
  void Flush() {
    if (!copied_.empty()) slices_.emplace_back(copied_);
    copied_.clear();
  }
  std::string copied_;
  std::vector<grpc::Slice> slices_;
};

uint64_t DataFieldBytes(const ResultTensor& tensor) {
  if (tensor.data_bytes == 0) return 0;
  return LengthPrefixBytes(kTensorDataField, tensor.data_bytes) + tensor.data_bytes;
}

uint64_t TensorBytes(const ResultTensor& tensor) {
  return tensor.header.ByteSizeLong() + DataFieldBytes(tensor);
}

void Append(const google::protobuf::Message& fields, std::span<ResultTensor> tensors,
            SliceWriter& writer) {
  fields.AppendToString(&writer.copied());
  for (ResultTensor& tensor : tensors) {
    AppendLengthPrefix(tensor.field, TensorBytes(tensor), &writer.copied());
    tensor.header.AppendToString(&writer.copied());
    if (tensor.data_bytes == 0) continue;
    AppendLengthPrefix(kTensorDataField, tensor.data_bytes, &writer.copied());
    writer.Add(std::move(tensor.data), tensor.data_bytes);
  }
}

}  // namespace

absl::Status RequestData::Parse(const grpc::ByteBuffer& wire, const SplitLayout& layout,
                                google::protobuf::Message& fields) {
  layout_ = layout;
  // Short slices lie within the vector's elements, which stay where they are from here on.
  if (wire.Valid() && !wire.Dump(&slices_).ok()) return Malformed(fields, wire.Length());
  std::vector<std::span<const std::byte>> chunks;
  chunks.reserve(slices_.size());
  size_t bytes = 0;
  for (const grpc::Slice& slice : slices_) {
    chunks.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
    bytes += slice.size();
  }
  if (std::optional<SplitMessage> split = SplitTensors(chunks, layout)) {
    if (!fields.ParseFromString(split->fields)) return Malformed(fields, bytes);
    data_ = std::move(split->data);
    return absl::OkStatus();
  }
  std::string whole;
  whole.reserve(bytes);
  for (const auto& chunk : chunks) {
    whole.append(reinterpret_cast<const char*>(chunk.data()), chunk.size());
  }
  slices_.clear();
  if (!fields.ParseFromString(whole)) return Malformed(fields, bytes);
  data_ = DataWithin(fields, layout);
  return absl::OkStatus();
}

const ByteSpans& RequestData::Of(uint32_t field) const {
  const auto begin = layout_.tensors.begin();
  const auto found = std::find(begin, layout_.tensors.end(), field);
  if (found != layout_.tensors.end()) return data_[static_cast<size_t>(found - begin)];
  const auto bytes = std::find(layout_.bytes.begin(), layout_.bytes.end(), field);
  return data_[layout_.tensors.size() + static_cast<size_t>(bytes - layout_.bytes.begin())];
}

grpc::ByteBuffer EncodeReply(const google::protobuf::Message& fields,
                             std::span<ResultTensor> tensors) {
  SliceWriter writer;
  Append(fields, tensors, writer);
  return std::move(writer).Finish();
}

grpc::ByteBuffer EncodeReplyWithin(std::string head, uint32_t outer_field,
                                   const google::protobuf::Message& fields,
                                   std::span<ResultTensor> tensors) {
  uint64_t bytes = fields.ByteSizeLong();
  for (const ResultTensor& tensor : tensors) {
    const uint64_t tensor_bytes = TensorBytes(tensor);
    bytes += LengthPrefixBytes(tensor.field, tensor_bytes) + tensor_bytes;
  }
  SliceWriter writer;
  writer.copied() = std::move(head);
  AppendLengthPrefix(outer_field, bytes, &writer.copied());
  Append(fields, tensors, writer);
  return std::move(writer).Finish();
}

}  // namespace nibble::server
