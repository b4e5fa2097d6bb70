#include "server/checkpoint/container_dtype.h"

#include <array>
#include <cstddef>
#include <limits>
#include <optional>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "server/checkpoint/quoted.h"
#include "server/checkpoint/safetensors.h"

namespace nibble::checkpoint {
namespace {

struct DTypeInfo {
  std::string_view name;
  int bits;
};

constexpr std::array<DTypeInfo, 22> kDTypes = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

std::optional<int64_t> CheckedProduct(int64_t a, int64_t b) {
  if (b != 0 && a > std::numeric_limits<int64_t>::max() / b) return std::nullopt;
  return a * b;
}

}  // namespace

int DTypeBits(std::string_view dtype) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == dtype) return info.bits;
  }
  return 0;
}

int DTypeRank(std::string_view dtype) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == dtype) return static_cast<int>(i);
  }
  return -1;
}

absl::StatusOr<int64_t> TensorBytes(std::string_view dtype, const std::vector<int64_t>& shape) {
  const int bits = DTypeBits(dtype);
  if (bits == 0) return absl::InvalidArgumentError(fmt::format("unknown dtype {}", Quoted(dtype)));
  std::optional<int64_t> product = 1;
  for (int64_t dim : shape) {
    if (dim < 0) return absl::InvalidArgumentError(fmt::format("negative dimension {}", dim));
    product = CheckedProduct(*product, dim);
    if (!product) break;
  }
  if (product) product = CheckedProduct(*product, bits);
  if (!product) {
    return absl::InvalidArgumentError(
        fmt::format("shape [{}] of {} overflows 63 bits", fmt::join(shape, ", "), dtype));
  }
  if (*product % 8 != 0) {
    return absl::InvalidArgumentError(fmt::format("shape [{}] of {} is {} bits, no whole bytes",
                                                  fmt::join(shape, ", "), dtype, *product));
  }
  return *product / 8;
}

}  // namespace nibble::checkpoint
