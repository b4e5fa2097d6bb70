#include "tests/fuzz/mutate_lines.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace nibble::fuzz {
namespace {

using Random = std::minstd_rand;
using Span = std::pair<size_t, size_t>;  // begin and size

constexpr std::array<std::string_view, 28> kNumbers = {"0",
                                                       "1",
                                                       "2",
                                                       "3",
                                                       "7",
                                                       "8",
                                                       "9",
                                                       "15",
                                                       "16",
                                                       "31",
                                                       "32",
                                                       "33",
                                                       "64",
                                                       "127",
                                                       "128",
                                                       "129",
                                                       "256",
                                                       "4096",
                                                       "65536",
                                                       "-1",
                                                       "0.5",
                                                       "2147483647",
                                                       "2147483648",
                                                       "4294967296",
                                                       "1152921504606846976",
                                                       "9223372036854775807",
                                                       "18446744073709551615",
                                                       "1e400"};

size_t Below(Random& random, size_t bound) { return random() % bound; }

std::vector<Span> Lines(std::string_view text) {
  std::vector<Span> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    lines.emplace_back(begin, end - begin);
    begin = end;
  }
  return lines;
}

std::vector<Span> Matches(std::string_view text, bool (*matches)(char)) {
  std::vector<Span> found;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!matches(text[i])) continue;
    if (found.empty() || found.back().first + found.back().second != i) found.emplace_back(i, 0);
    ++found.back().second;
  }
  return found;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsWord(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// A number becomes an odd one, a near one, or another of the text.
void ChangeNumber(Random& random, std::string* text) {
  const std::vector<Span> numbers = Matches(*text, IsDigit);
  if (numbers.empty()) return;
  const Span at = numbers[Below(random, numbers.size())];
  std::string value;
  switch (Below(random, 3)) {
    case 0:
      value = kNumbers[Below(random, kNumbers.size())];
      break;
    case 1: {
      const Span from = numbers[Below(random, numbers.size())];
      value = text->substr(from.first, from.second);
      break;
    }
    default: {
      const uint64_t number = at.second > 18 ? 0 : std::stoull(text->substr(at.first, at.second));
      const std::array<uint64_t, 5> near = {number + 1, number - (number > 0), number * 2,
                                            number / 2, number + 8};
      value = std::to_string(near[Below(random, near.size())]);
    }
  }
  text->replace(at.first, at.second, value);
}

void ChangeWord(Random& random, std::string* text) {
  const std::vector<Span> words = Matches(*text, IsWord);
  if (words.empty()) return;
  const Span at = words[Below(random, words.size())];
  const Span from = words[Below(random, words.size())];
  text->replace(at.first, at.second, text->substr(from.first, from.second));
}

void ChangeLines(Random& random, std::string* text) {
  const std::vector<Span> lines = Lines(*text);
  if (lines.empty()) return;
  const Span at = lines[Below(random, lines.size())];
  const Span from = lines[Below(random, lines.size())];
  const std::string copy = text->substr(from.first, from.second);
  switch (Below(random, 3)) {
    case 0:
      text->erase(at.first, at.second);
      break;
    case 1:
      text->insert(at.first, copy);
      break;
    default:
      text->replace(at.first, at.second, copy);
  }
}

}  // namespace

size_t MutateLines(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  Random random(seed);
  if (Below(random, 2) == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::string text(reinterpret_cast<const char*>(data), size);
  for (size_t changes = Below(random, 3) + 1; changes > 0; --changes) {
    switch (Below(random, 4)) {
      case 0:
        ChangeLines(random, &text);
        break;
      case 1:
        ChangeWord(random, &text);
        break;
      default:
        ChangeNumber(random, &text);
    }
  }
  if (text.empty() || text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

}  // namespace nibble::fuzz
