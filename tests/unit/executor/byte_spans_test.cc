#include "server/executor/byte_spans.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace nibble::server {
namespace {

std::string Copy(const ByteSpans& spans, uint64_t offset, uint64_t bytes) {
  std::string copied(bytes, '\0');
  spans.CopyTo(offset, bytes, reinterpret_cast<std::byte*>(copied.data()));
  return copied;
}

TEST(ByteSpans, EveryRangeIsThatOfTheWhole) {
  std::mt19937 random(1);
  std::string whole(60, '\0');
  for (char& c : whole) c = static_cast<char>(random());
  for (int round = 0; round < 20; ++round) {
    ByteSpans spans;
    for (size_t begin = 0; begin < whole.size();) {
      const size_t size = std::min<size_t>(random() % 9, whole.size() - begin);
      spans.Append(std::as_bytes(std::span(whole).subspan(begin, size)));
      begin += size;
    }
    ASSERT_EQ(spans.size(), whole.size());
    for (size_t offset = 0; offset <= whole.size(); ++offset) {
      for (size_t bytes = 0; bytes <= whole.size() - offset; ++bytes) {
        ASSERT_EQ(Copy(spans, offset, bytes), whole.substr(offset, bytes));
      }
    }
  }
}

TEST(ByteSpans, NothingIsEmpty) {
  const ByteSpans none;
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(Copy(none, 0, 0), "");
  EXPECT_TRUE(ByteSpans(std::span<const std::byte>()).empty());
}

}  // namespace
}  // namespace nibble::server
