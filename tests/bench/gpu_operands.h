// What gpu_bench multiplies: random operands in device memory, enough copies of each weight that a
// round over them finds the L2 cold.
#ifndef NIBBLE_TESTS_BENCH_GPU_OPERANDS_H_
#define NIBBLE_TESTS_BENCH_GPU_OPERANDS_H_

#include <algorithm>
#include <memory>
#include <vector>

#include "nibble/backend.h"
#include "nibble/numeric.h"
#include "tests/bench/bench_data.h"

namespace nibble::bench {

inline constexpr uint64_t kColdBytes = uint64_t{400} << 20;

using Weights = std::vector<std::unique_ptr<DeviceWeight>>;

// Operands of cuBLAS BF16: copies of w [n, k], x [rows, k], y [rows, n].
struct Dense {
  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
  int64_t n;
  int64_t k;
  std::vector<std::unique_ptr<Buffer>> weights;
  std::unique_ptr<Buffer> x;
  std::unique_ptr<Buffer> y;
  std::unique_ptr<Buffer> workspace;
};

class Operands {
 public:
  Operands(Device& device, Stream& stream) : device_(device), stream_(stream) {}

  StatusOr<std::unique_ptr<Buffer>> Zeros(int64_t bytes) {
    return device_.Allocate(static_cast<uint64_t>(bytes), MemoryKind::kDevice);
  }

  // Random BF16 in [-1, 1).
  StatusOr<std::unique_ptr<Buffer>> Activations(int64_t count) {
    const int64_t block = std::min<int64_t>(count, 1 << 20);
    const HostBytes random = RandomFloats(DType::kBF16, block, -1.0f, 1.0f, ++seed_);
    NIBBLE_ASSIGN_OR_RETURN(auto buffer, Zeros(count * 2));
    for (int64_t i = 0; i < count; i += block) {
      const int64_t size = std::min(block, count - i) * 2;
      NIBBLE_RETURN_IF_ERROR(
          stream_.Copy(static_cast<char*>(buffer->data()) + i * 2, random.data(), size));
    }
    NIBBLE_RETURN_IF_ERROR(stream_.Synchronize());
    return buffer;
  }

  // E4M3 codes, none of them NaN.
  StatusOr<std::unique_ptr<Buffer>> Codes(int64_t count) {
    WeightSpec spec;
    spec.format = Format::kFP8;
    spec.n = 1;
    spec.k = count;
    const HostBytes codes = RandomWeight(spec).codes;
    NIBBLE_ASSIGN_OR_RETURN(auto buffer, Zeros(count));
    NIBBLE_RETURN_IF_ERROR(stream_.Copy(buffer->data(), codes.data(), codes.size()));
    NIBBLE_RETURN_IF_ERROR(stream_.Synchronize());
    return buffer;
  }

  StatusOr<std::unique_ptr<Buffer>> Scales(int64_t count) {
    const HostBytes scales = RandomFloats(DType::kF32, count, 0.001f, 0.002f, ++seed_);
    NIBBLE_ASSIGN_OR_RETURN(auto buffer, Zeros(count * 4));
    NIBBLE_RETURN_IF_ERROR(stream_.Copy(buffer->data(), scales.data(), scales.size()));
    NIBBLE_RETURN_IF_ERROR(stream_.Synchronize());
    return buffer;
  }

  // Copies of one weight.
  StatusOr<Weights> Upload(const WeightSpec& spec) {
    const CanonicalWeight weight = RandomWeight(spec);
    Weights weights;
    uint64_t bytes = 0;
    while (bytes < kColdBytes || weights.size() < 2) {
      NIBBLE_ASSIGN_OR_RETURN(weights.emplace_back(), device_.Upload(weight, nullptr));
      bytes += weights.back()->bytes();
    }
    return weights;
  }

  StatusOr<Dense> UploadDense(int64_t n, int64_t k, int64_t rows) {
    Dense dense{n, k, {}, nullptr, nullptr, nullptr};
    for (uint64_t bytes = 0; bytes < kColdBytes || dense.weights.size() < 2; bytes += n * k * 2) {
      NIBBLE_ASSIGN_OR_RETURN(dense.weights.emplace_back(), Activations(n * k));
    }
    NIBBLE_ASSIGN_OR_RETURN(dense.x, Activations(rows * k));
    NIBBLE_ASSIGN_OR_RETURN(dense.y, Zeros(rows * n * 2));
    NIBBLE_ASSIGN_OR_RETURN(dense.workspace, Zeros(Dense::kWorkspaceBytes));
    return dense;
  }

  // The first `count` elements of a buffer.
  StatusOr<std::vector<float>> Download(const Buffer& y, DType dtype, int64_t count) {
    std::vector<std::byte> bytes(static_cast<size_t>(count) * DTypeBytes(dtype));
    NIBBLE_RETURN_IF_ERROR(stream_.Copy(bytes.data(), y.data(), bytes.size()));
    NIBBLE_RETURN_IF_ERROR(stream_.Synchronize());
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(LoadAsFloat(bytes.data(), dtype, i));
    return values;
  }

 private:
  Device& device_;
  Stream& stream_;
  uint64_t seed_ = 100;
};

}  // namespace nibble::bench

#endif  // NIBBLE_TESTS_BENCH_GPU_OPERANDS_H_
