#include "server/checkpoint/safetensors_header.h"

#include <utility>

#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/quoted.h"

namespace nibble::checkpoint {
namespace {

constexpr std::string_view kJsonSpace = " \t\r\n";

class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(Header* header) : header_(header) {}

  const std::string& error() const { return error_; }

  bool null() override { return Scalar("null"); }
  bool boolean(bool) override { return Scalar("a boolean"); }
  bool number_integer(number_integer_t) override { return Scalar("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Scalar("a number that is no 64-bit integer");
  }
  bool binary(binary_t&) override { return Scalar("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (value > kMaxDimension) return Fail(fmt::format("dimension {} exceeds 2^62", value));
      if (entry_.shape.size() == kMaxRank) {
        return Fail(fmt::format("more than {} dimensions", kMaxRank));
      }
      entry_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (offsets_ == 2) return Fail("data_offsets holds more than two numbers");
      (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
      return true;
    }
    return Scalar("a number");
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header_->metadata.emplace(field_, std::move(value));
      return true;
    }
    if (place_ == Place::kEntry && field_ == "dtype") {
      entry_.dtype = std::move(value);
      return true;
    }
    return Scalar("a string");
  }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        place_ = name_ == "__metadata__" ? Place::kMetadata : Place::kEntry;
        entry_ = {};
        offsets_ = 0;
        fields_seen_ = 0;
        return true;
      default:
        return Nest("an object");
    }
  }

  bool key(string_t& value) override {
    switch (place_) {
      case Place::kTop:
        if (header_->tensors.contains(value) ||
            (value == "__metadata__" && std::exchange(metadata_seen_, true))) {
          return FailTop(fmt::format("key {} appears twice", Quoted(value)));
        }
        if (++entries_ > kMaxHeaderEntries) {
          return FailTop(fmt::format("more than {} entries", kMaxHeaderEntries));
        }
        name_ = std::move(value);
        return true;
      case Place::kMetadata:
        if (header_->metadata.contains(value)) {
          return Fail(fmt::format("key {} appears twice", Quoted(value)));
        }
        if (++entries_ > kMaxHeaderEntries) {
          return FailTop(fmt::format("more than {} entries", kMaxHeaderEntries));
        }
        field_ = std::move(value);
        return true;
      case Place::kEntry: {
        const unsigned bit = FieldBit(value);
        if ((fields_seen_ & bit) != 0) return Fail(fmt::format("key '{}' appears twice", value));
        fields_seen_ |= bit;
        field_ = std::move(value);
        return true;
      }
      default:
        return true;
    }
  }

  bool end_object() override {
    switch (place_) {
      case Place::kIgnored:
        return Unnest();
      case Place::kMetadata:
        place_ = Place::kTop;
        return true;
      case Place::kEntry:
        for (std::string_view field : {"dtype", "shape", "data_offsets"}) {
          if ((fields_seen_ & FieldBit(field)) == 0) return Fail(fmt::format("no '{}'", field));
        }
        header_->tensors.emplace(std::move(name_), std::move(entry_));
        name_.clear();
        place_ = Place::kTop;
        return true;
      default:
        place_ = Place::kStart;
        return true;
    }
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kEntry && field_ == "shape") {
      place_ = Place::kShape;
      return true;
    }
    if (place_ == Place::kEntry && field_ == "data_offsets") {
      place_ = Place::kOffsets;
      return true;
    }
    return Nest("an array");
  }

  bool end_array() override {
    if (place_ == Place::kIgnored) return Unnest();
    if (place_ == Place::kOffsets && offsets_ != 2) {
      return Fail(fmt::format("data_offsets holds {} numbers, expected 2", offsets_));
    }
    place_ = Place::kEntry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return FailTop(fmt::format("header is no valid UTF-8 JSON near its byte {}", position));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kEntry, kShape, kOffsets, kIgnored };

  static unsigned FieldBit(std::string_view field) {
    return field == "dtype" ? 1u : field == "shape" ? 2u : field == "data_offsets" ? 4u : 0u;
  }

  bool FailTop(std::string message) {
    error_ = std::move(message);
    return false;
  }
  bool Fail(std::string_view message) {
    return FailTop(fmt::format("entry {}: {}", Quoted(name_), message));
  }

  bool IgnoredField() const { return place_ == Place::kEntry && FieldBit(field_) == 0; }

  bool Scalar(std::string_view kind) {
    if (place_ == Place::kIgnored || IgnoredField()) return true;
    return Misplaced(kind);
  }

  bool Misplaced(std::string_view kind) {
    switch (place_) {
      case Place::kStart:
        return FailTop(fmt::format("header is {}, expected a JSON object", kind));
      case Place::kTop:
        return Fail(fmt::format("expected an object, received {}", kind));
      case Place::kMetadata:
        return Fail(fmt::format("{}: expected a string, received {}", Quoted(field_), kind));
      case Place::kEntry:
        return Fail(fmt::format("{}: expected {}, received {}", field_,
                                field_ == "dtype" ? "a string" : "an array", kind));
      default:
        return Fail(fmt::format("{}: expected non-negative integers below 2^64, received {}",
                                field_, kind));
    }
  }

  bool Nest(std::string_view kind) {
    if (place_ != Place::kIgnored && !IgnoredField()) return Misplaced(kind);
    place_ = Place::kIgnored;
    if (++ignored_depth_ > kMaxIgnoredDepth) {
      return Fail(fmt::format("nested deeper than {}", kMaxIgnoredDepth));
    }
    return true;
  }
  bool Unnest() {
    if (--ignored_depth_ == 0) place_ = Place::kEntry;
    return true;
  }

  Header* header_;
  std::string error_;
  Place place_ = Place::kStart;
  std::string name_;
  std::string field_;
  HeaderEntry entry_;
  int offsets_ = 0;
  unsigned fields_seen_ = 0;
  size_t ignored_depth_ = 0;
  size_t entries_ = 0;
  bool metadata_seen_ = false;
};

}  // namespace

absl::Status ReadHeader(std::string_view text, Header* header) {
  // The JSON library takes a byte order mark before and a NUL after the text; the format does not.
  const size_t first = text.find_first_not_of(kJsonSpace);
  if (first == std::string_view::npos || text[first] != '{') {
    return absl::InvalidArgumentError("header does not begin with a JSON object");
  }
  if (text.find('\0') != std::string_view::npos) {
    return absl::InvalidArgumentError("header holds a NUL byte");
  }
  HeaderReader reader(header);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader)) {
    return absl::InvalidArgumentError(reader.error());
  }
  return absl::OkStatus();
}

}  // namespace nibble::checkpoint
