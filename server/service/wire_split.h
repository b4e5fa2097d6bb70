// Splits a serialized request into its small fields, which protobuf parses, and the data of its
// tensors, which stays where the transport put it. Pure functions over bytes.
#ifndef NIBBLE_SERVER_SERVICE_WIRE_SPLIT_H_
#define NIBBLE_SERVER_SERVICE_WIRE_SPLIT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/executor/byte_spans.h"

namespace nibble::server {

// Field number of Tensor.data.
inline constexpr uint32_t kTensorDataField = 15;
// A message whose small fields take more is not split.
inline constexpr size_t kMaxSmallFieldBytes = size_t{1} << 20;

// The numbers of a message's fields that may be large: fields of type Tensor, and fields of type
// bytes. Singular, and none of them part of a oneof.
struct SplitLayout {
  std::span<const uint32_t> tensors = {};
  std::span<const uint32_t> bytes = {};

  size_t size() const { return tensors.size() + bytes.size(); }
};

struct SplitMessage {
  // The message as it was sent, but its tensors have no data and its large bytes fields are absent.
  std::string fields;
  // The data of the tensors and then of the bytes fields, in the order of the layout; over the
  // memory of the chunks.
  std::vector<ByteSpans> data;
};

// Splits the message whose bytes are `chunks` one after another. Parsing `fields` and putting the
// data back yields what parsing the whole message does: fields come in any order, a tensor that is
// sent in several parts is merged, the last data counts, unknown fields are kept.
//
// Nothing for a message that is malformed or unusual (groups, lengths of more digits than needed,
// very many small fields): protobuf decides about those. Reads no byte twice.
std::optional<SplitMessage> SplitTensors(std::span<const std::span<const std::byte>> chunks,
                                         const SplitLayout& layout);

// Appends the tag of a length-delimited field and its length, as SerializeToString writes them.
void AppendLengthPrefix(uint32_t field, uint64_t bytes, std::string* out);
// Bytes that AppendLengthPrefix appends.
size_t LengthPrefixBytes(uint32_t field, uint64_t bytes);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_WIRE_SPLIT_H_
