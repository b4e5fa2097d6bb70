#include "server/service/wire_split.h"

#include <algorithm>
#include <utility>

namespace nibble::server {
namespace {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

constexpr int kMaxVarintBytes = 10;
// Of tags and lengths, which have 32 and 31 bits.
constexpr int kMaxShortVarintBytes = 5;
constexpr uint64_t kMaxTag = UINT32_MAX;
constexpr uint64_t kMaxLength = INT32_MAX;

// The position in the chunks. Callers check `left` before they advance by a length.
class Cursor {
 public:
  explicit Cursor(std::span<const std::span<const std::byte>> chunks) : next_(chunks) {
    for (const auto& chunk : chunks) left_ += chunk.size();
  }

  uint64_t left() const { return left_; }

  // A number of at most `max_bytes` bytes, and its bytes appended to `raw`.
  bool Varint(int max_bytes, uint64_t* value, std::string* raw) {
    *value = 0;
    for (int i = 0; i < max_bytes && left_ > 0; ++i) {
      const auto byte = static_cast<uint8_t>(Here().front());
      Advance(1);
      raw->push_back(static_cast<char>(byte));
      *value |= uint64_t{byte & 0x7Fu} << (7 * i);
      if (byte < 0x80) return true;
    }
    return false;
  }

  template <typename Use>
  void ForEachSpan(uint64_t bytes, Use use) {
    while (bytes > 0) {
      const std::span<const std::byte> here = Here();
      const auto span = here.first(std::min<uint64_t>(bytes, here.size()));
      use(span);
      Advance(span.size());
      bytes -= span.size();
    }
  }
  void AppendTo(uint64_t bytes, std::string* out) {
    ForEachSpan(bytes, [out](std::span<const std::byte> span) {
      out->append(reinterpret_cast<const char*>(span.data()), span.size());
    });
  }

 private:
  // What is left of the current chunk; not empty while bytes are left.
  std::span<const std::byte> Here() {
    while (here_.empty()) {
      here_ = next_.front();
      next_ = next_.subspan(1);
    }
    return here_;
  }
  void Advance(uint64_t bytes) {
    here_ = here_.subspan(bytes);
    left_ -= bytes;
  }

  std::span<const std::byte> here_;
  std::span<const std::span<const std::byte>> next_;
  uint64_t left_ = 0;
};

// The start of a field: its tag and, for a length-delimited one, its length.
struct FieldStart {
  uint32_t number = 0;
  uint32_t type = 0;
  uint64_t length = 0;
  std::string raw;  // the tag's bytes
};

// The field's tag, and the length where it has one, within the `end` bytes that may be left.
bool ReadStart(Cursor& cursor, FieldStart* field, std::string* raw_length) {
  field->raw.clear();
  raw_length->clear();
  uint64_t tag = 0;
  if (!cursor.Varint(kMaxShortVarintBytes, &tag, &field->raw) || tag > kMaxTag) return false;
  field->number = static_cast<uint32_t>(tag >> 3);
  field->type = static_cast<uint32_t>(tag & 7);
  if (field->number == 0) return false;
  if (field->type != kLengthDelimited) return true;
  return cursor.Varint(kMaxShortVarintBytes, &field->length, raw_length) &&
         field->length <= kMaxLength;
}

// Copies the value of `field`, whose tag and length have been read, and these before it.
bool CopyField(Cursor& cursor, uint64_t end, const FieldStart& field, const std::string& raw_length,
               std::string* out) {
  out->append(field.raw);
  uint64_t bytes = 0;
  switch (field.type) {
    case kVarint: {
      uint64_t value = 0;
      return cursor.Varint(kMaxVarintBytes, &value, out) && cursor.left() >= end;
    }
    case kFixed64:
      bytes = 8;
      break;
    case kFixed32:
      bytes = 4;
      break;
    case kLengthDelimited:
      out->append(raw_length);
      bytes = field.length;
      break;
    default:
      return false;
  }
  if (cursor.left() < end || cursor.left() - end < bytes ||
      out->size() + bytes > kMaxSmallFieldBytes) {
    return false;
  }
  cursor.AppendTo(bytes, out);
  return true;
}

ByteSpans TakeSpans(Cursor& cursor, uint64_t bytes) {
  ByteSpans taken;
  cursor.ForEachSpan(bytes, [&taken](std::span<const std::byte> span) { taken.Append(span); });
  return taken;
}

// numbers.size() where it is not there.
size_t IndexOf(std::span<const uint32_t> numbers, uint32_t number) {
  return static_cast<size_t>(std::find(numbers.begin(), numbers.end(), number) - numbers.begin());
}

// Reads a tensor up to where `end` bytes are left: its data to `data`, all else to `fields`.
bool SplitTensor(Cursor& cursor, uint64_t end, std::string* fields, ByteSpans* data) {
  FieldStart field;
  std::string raw_length;
  while (cursor.left() > end) {
    if (!ReadStart(cursor, &field, &raw_length) || cursor.left() < end) return false;
    if (field.number != kTensorDataField || field.type != kLengthDelimited) {
      if (!CopyField(cursor, end, field, raw_length, fields)) return false;
      continue;
    }
    if (cursor.left() - end < field.length) return false;
    *data = TakeSpans(cursor, field.length);
  }
  return cursor.left() == end;
}

void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>((value & 0x7F) | 0x80));
  out->push_back(static_cast<char>(value));
}

size_t VarintBytes(uint64_t value) {
  size_t bytes = 1;
  for (; value >= 0x80; value >>= 7) ++bytes;
  return bytes;
}

uint64_t LengthDelimitedTag(uint32_t field) { return uint64_t{field} << 3 | kLengthDelimited; }

}  // namespace

std::optional<SplitMessage> SplitTensors(std::span<const std::span<const std::byte>> chunks,
                                         const SplitLayout& layout) {
  SplitMessage split;
  split.data.resize(layout.size());
  Cursor cursor(chunks);
  FieldStart field;
  std::string raw_length;
  std::string tensor;
  while (cursor.left() > 0) {
    if (split.fields.size() > kMaxSmallFieldBytes) return std::nullopt;
    if (!ReadStart(cursor, &field, &raw_length)) return std::nullopt;
    const size_t tensor_index = IndexOf(layout.tensors, field.number);
    const size_t bytes_index = IndexOf(layout.bytes, field.number);
    const bool is_tensor = tensor_index < layout.tensors.size();
    const bool is_bytes = bytes_index < layout.bytes.size();
    if (field.type != kLengthDelimited || !(is_tensor || is_bytes)) {
      if (!CopyField(cursor, 0, field, raw_length, &split.fields)) return std::nullopt;
      continue;
    }
    if (cursor.left() < field.length) return std::nullopt;
    if (is_bytes) {
      split.data[layout.tensors.size() + bytes_index] = TakeSpans(cursor, field.length);
      continue;
    }
    tensor.clear();
    if (!SplitTensor(cursor, cursor.left() - field.length, &tensor, &split.data[tensor_index])) {
      return std::nullopt;
    }
    AppendLengthPrefix(field.number, tensor.size(), &split.fields);
    split.fields += tensor;
  }
  return split;
}

void AppendLengthPrefix(uint32_t field, uint64_t bytes, std::string* out) {
  AppendVarint(LengthDelimitedTag(field), out);
  AppendVarint(bytes, out);
}

size_t LengthPrefixBytes(uint32_t field, uint64_t bytes) {
  return VarintBytes(LengthDelimitedTag(field)) + VarintBytes(bytes);
}

}  // namespace nibble::server
