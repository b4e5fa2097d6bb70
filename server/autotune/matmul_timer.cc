#include "server/autotune/matmul_timer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <random>
#include <utility>

#include "fmt/format.h"
#include "nibble/numeric.h"
#include "nibble/status.h"

namespace nibble::server {
namespace {

constexpr uint64_t kAlignment = 256;
// Activations are these over and over.
constexpr uint64_t kRandomBytes = uint64_t{64} << 10;
// As the executor's lanes.
constexpr int64_t kMaxGraphRows = 128;
constexpr int kBegin = 0;
constexpr int kEnd = 1;

// Bytes of `rows` rows of `cols` elements of `size` bytes, aligned; none where they are too many.
std::optional<uint64_t> BytesOf(int64_t rows, int64_t cols, int64_t size) {
  const std::optional<int64_t> elements = CheckedMul(rows, cols);
  if (!elements) return std::nullopt;
  const std::optional<int64_t> bytes = CheckedMul(*elements, size);
  if (!bytes) return std::nullopt;
  return (static_cast<uint64_t>(*bytes) + kAlignment - 1) / kAlignment * kAlignment;
}

uint64_t SizeOf(const std::unique_ptr<Buffer>& buffer) {
  return buffer == nullptr ? 0 : buffer->size();
}

}  // namespace

absl::StatusOr<std::unique_ptr<MatmulTimer>> MatmulTimer::Create(Device& device,
                                                                 const MatmulKey& key,
                                                                 uint64_t memory_bytes) {
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device.CreateStream());
  return std::unique_ptr<MatmulTimer>(
      new MatmulTimer(device, key, memory_bytes, std::move(stream)));
}

absl::Status MatmulTimer::Fill(Buffer& buffer, DType dtype, float low, float high) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> staging,
                          device_.Allocate(kRandomBytes, MemoryKind::kStaging));
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(low, high);
  const auto elements = static_cast<int64_t>(kRandomBytes / DTypeBytes(dtype));
  for (int64_t i = 0; i < elements; ++i) StoreFromFloat(staging->data(), dtype, i, uniform(random));
  for (uint64_t at = 0; at < buffer.size(); at += kRandomBytes) {
    NIBBLE_RETURN_IF_ERROR(stream_->Copy(static_cast<std::byte*>(buffer.data()) + at,
                                         staging->data(),
                                         std::min(kRandomBytes, buffer.size() - at)));
  }
  return stream_->Synchronize();
}

absl::Status MatmulTimer::Reserve(const Choice& choice, int64_t m) {
  const WeightSpec& spec = key_.weight;
  const int64_t scales_per_row =
      key_.input == DType::kF8E4M3 ? ScalesPerRow(key_.activation, spec.k) : 0;
  const auto x = BytesOf(m, spec.k, static_cast<int64_t>(DTypeBytes(key_.input)));
  const auto scales = BytesOf(m, scales_per_row, int64_t{sizeof(float)});
  const auto y = BytesOf(m, spec.n, static_cast<int64_t>(DTypeBytes(key_.output)));
  const uint64_t workspace = device_.WorkspaceBytes(ProblemOf(key_, m), choice);
  struct Need {
    std::unique_ptr<Buffer>* buffer;
    uint64_t bytes;
  };
  // Each within the bound, so that their sum does not overflow.
  for (const auto& bytes : {x, scales, y, std::optional(workspace)}) {
    if (bytes && *bytes <= memory_bytes_) continue;
    return absl::ResourceExhaustedError(
        fmt::format("measuring {} rows: expected at most {} bytes", m, memory_bytes_));
  }
  const std::array<Need, 4> needs = {
      {{&x_, *x}, {&scales_, *scales}, {&y_, *y}, {&workspace_, workspace}}};
  uint64_t needed = 0;
  uint64_t grown = 0;  // when what is there already stays
  for (const Need& need : needs) {
    needed += need.bytes;
    grown += std::max(need.bytes, SizeOf(*need.buffer));
  }
  if (needed > memory_bytes_) {
    return absl::ResourceExhaustedError(fmt::format(
        "measuring {} rows: expected at most {} bytes; needs {}", m, memory_bytes_, needed));
  }
  if (grown > memory_bytes_) {
    for (const Need& need : needs) need.buffer->reset();
  }
  for (const Need& need : needs) {
    if (SizeOf(*need.buffer) >= need.bytes) continue;
    need.buffer->reset();
    NIBBLE_ASSIGN_OR_RETURN(*need.buffer, device_.Allocate(need.bytes, MemoryKind::kDevice));
    // Never zeros, which run faster than data does.
    absl::Status filled;
    if (need.buffer == &x_) filled = Fill(*x_, key_.input, -1.0f, 1.0f);
    if (need.buffer == &scales_) filled = Fill(*scales_, DType::kF32, 0.01f, 0.02f);
    if (!filled.ok()) {
      need.buffer->reset();
      return filled;
    }
  }
  return absl::OkStatus();
}

absl::Status MatmulTimer::Enqueue(const Choice& choice, int64_t m,
                                  std::span<const WeightHandle> weights, int launches) {
  const WeightSpec& spec = key_.weight;
  NIBBLE_RETURN_IF_ERROR(stream_->Mark(kBegin));
  for (int launch = 0; launch < launches; ++launch) {
    const DeviceWeight& weight = weights[next_weight_++ % weights.size()]->weight();
    MatmulArgs args;
    args.weight = &weight;
    args.x = MakeConstView(x_->data(), key_.input, m, spec.k);
    if (scales_ != nullptr) {
      args.x_scales =
          MakeConstView(scales_->data(), DType::kF32, m, ScalesPerRow(key_.activation, spec.k));
    }
    args.activation = key_.activation;
    args.static_scale = weight.input_scale();
    args.y = MakeView(y_->data(), key_.output, m, spec.n);
    void* workspace = workspace_ == nullptr ? nullptr : workspace_->data();
    NIBBLE_RETURN_IF_ERROR(device_.Matmul(args, choice, workspace, *stream_));
  }
  return stream_->Mark(kEnd);
}

std::unique_ptr<Graph> MatmulTimer::Record(const std::function<absl::Status()>& enqueue) {
  absl::Status status = stream_->BeginCapture();
  if (!status.ok()) {
    if (absl::IsUnimplemented(status)) records_ = false;
    return nullptr;
  }
  status = enqueue();
  auto graph = stream_->EndCapture();
  return status.ok() && graph.ok() ? *std::move(graph) : nullptr;
}

absl::StatusOr<double> MatmulTimer::Time(const Choice& choice, int64_t m,
                                         std::span<const WeightHandle> weights, int launches) {
  NIBBLE_RETURN_IF_ERROR(Reserve(choice, m));
  const auto enqueue = [&] { return Enqueue(choice, m, weights, launches); };
  std::unique_ptr<Graph> graph;
  if (records_ && m <= kMaxGraphRows) graph = Record(enqueue);
  const absl::Status started = graph != nullptr ? stream_->Launch(*graph) : enqueue();
  // Also after a failure: what was enqueued still reads the buffers.
  const absl::Status done = stream_->Synchronize();
  NIBBLE_RETURN_IF_ERROR(started);
  NIBBLE_RETURN_IF_ERROR(done);
  NIBBLE_ASSIGN_OR_RETURN(const double us, stream_->MicrosecondsBetween(kBegin, kEnd));
  return us / launches;
}

}  // namespace nibble::server
