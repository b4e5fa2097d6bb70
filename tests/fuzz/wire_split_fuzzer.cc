// The splitter of requests against protobuf: a byte for the message's type, a byte for where the
// transport cuts it, then the message. What the splitter accepts must mean what protobuf reads.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nibble/v1/linear.pb.h"
#include "server/service/tensor_message.h"
#include "server/service/wire_split.h"
#include "tests/fuzz/memory_limit.h"
#include "tests/fuzz/require.h"

namespace nibble::fuzz {
namespace {

using google::protobuf::Message;
using server::ByteSpans;
using server::SplitLayout;

// Pieces of `size` bytes, an empty one between them.
std::vector<std::span<const std::byte>> Cut(std::span<const std::byte> bytes, size_t size) {
  std::vector<std::span<const std::byte>> chunks;
  while (!bytes.empty()) {
    const size_t taken = size == 0 ? bytes.size() : std::min(size, bytes.size());
    chunks.push_back(bytes.first(taken));
    chunks.push_back({});
    bytes = bytes.subspan(taken);
  }
  return chunks;
}

std::string Text(const ByteSpans& spans) {
  std::string text(spans.size(), '\0');
  spans.CopyTo(0, text.size(), reinterpret_cast<std::byte*>(text.data()));
  return text;
}

// Puts field `number` of `message`, a tensor's data or bytes, back.
void PutBack(uint32_t number, bool is_tensor, std::string data, Message* message) {
  const auto* field = message->GetDescriptor()->FindFieldByNumber(static_cast<int>(number));
  const auto* reflection = message->GetReflection();
  if (!is_tensor) {
    Require(reflection->GetString(*message, field).empty(), "large bytes are taken out");
    if (!data.empty()) reflection->SetString(message, field, std::move(data));
    return;
  }
  if (reflection->HasField(*message, field)) {
    const auto& tensor = static_cast<const v1::Tensor&>(reflection->GetMessage(*message, field));
    Require(tensor.data().empty(), "the data of a tensor is taken out");
  }
  if (data.empty()) return;
  static_cast<v1::Tensor*>(reflection->MutableMessage(message, field))->set_data(std::move(data));
}

void Compare(const Message& prototype, const SplitLayout& layout, std::span<const std::byte> wire,
             size_t chunk_bytes) {
  const auto split = server::SplitTensors(Cut(wire, chunk_bytes), layout);
  if (!split) return;
  Require(split->data.size() == layout.size(), "every field of the layout has its data");
  const std::unique_ptr<Message> expected(prototype.New());
  const std::unique_ptr<Message> joined(prototype.New());
  const bool parses = expected->ParseFromArray(wire.data(), static_cast<int>(wire.size()));
  Require(joined->ParseFromString(split->fields) == parses, "both are read or neither is");
  if (!parses) return;
  size_t at = 0;
  for (const uint32_t field : layout.tensors) {
    PutBack(field, true, Text(split->data[at++]), joined.get());
  }
  for (const uint32_t field : layout.bytes) {
    PutBack(field, false, Text(split->data[at++]), joined.get());
  }
  Require(joined->SerializeAsString() == expected->SerializeAsString(),
          "a message that was split is the one that was sent");
}

}  // namespace
}  // namespace nibble::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble::fuzz;
  using nibble::server::kTensorFields;
  namespace v1 = nibble::v1;
  static const google::protobuf::LogSilencer silencer;
  static constexpr std::array<uint32_t, 1> kPayload{v1::EchoRequest::kPayloadFieldNumber};
  if (size < 2) return 0;
  const MemoryLimit limit(static_cast<int64_t>(size));
  const auto wire = std::as_bytes(std::span(data, size)).subspan(2);
  const size_t chunk_bytes = data[1];
  switch (data[0] % 4) {
    case 0:
      Compare(v1::MatmulRequest::default_instance(), {.tensors = kTensorFields<v1::MatmulRequest>},
              wire, chunk_bytes);
      break;
    case 1:
      Compare(v1::NormQuantRequest::default_instance(),
              {.tensors = kTensorFields<v1::NormQuantRequest>}, wire, chunk_bytes);
      break;
    case 2:
      Compare(v1::SiluMulQuantRequest::default_instance(),
              {.tensors = kTensorFields<v1::SiluMulQuantRequest>}, wire, chunk_bytes);
      break;
    default:
      Compare(v1::EchoRequest::default_instance(), {.bytes = kPayload}, wire, chunk_bytes);
  }
  return 0;
}
