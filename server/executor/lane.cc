#include "server/executor/lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "nibble/selector.h"
#include "nibble/status.h"
#include "server/log/log.h"

namespace nibble::server {
namespace {

constexpr uint64_t kAlignment = 256;
constexpr int kMarkComputeBegin = 0;
constexpr int kMarkComputeEnd = 1;

// Larger batches take longer on the device than to launch, and seldom come twice with as many rows.
constexpr int64_t kMaxGraphRows = 128;
// 106 KB of device memory each (H200, one GEMV with its copy and marks).
constexpr size_t kMaxGraphs = 256;
// A graph takes 59 us to make and saves 1 to 7 us a batch, more where a batch is several launches.
constexpr int kRecordAtUse = 8;

// Inputs of more than kMaxGraphRows rows go to the device so many bytes at a time, at least: while
// it takes some, the crew gathers the next.
constexpr uint64_t kStreamedBytes = uint64_t{2} << 20;
// What one thread of the crew copies at a time. Fewer bytes in all are not worth waking it.
constexpr uint64_t kSliceBytes = uint64_t{512} << 10;
constexpr uint64_t kLeastForCrew = 2 * kSliceBytes;

uint64_t Align(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

const Job& JobOf(const Piece& piece) { return *static_cast<const Job*>(piece.payload.get()); }

void Gather(const RowInput& input, int64_t row_begin, int64_t rows, int64_t row_bytes,
            std::byte* to) {
  const auto stride = static_cast<uint64_t>(input.row_stride_bytes);
  const uint64_t from = static_cast<uint64_t>(row_begin) * stride;
  if (input.row_stride_bytes == row_bytes) {
    input.data.CopyTo(from, static_cast<uint64_t>(rows * row_bytes), to);
    return;
  }
  for (int64_t row = 0; row < rows; ++row) {
    input.data.CopyTo(from + static_cast<uint64_t>(row) * stride, static_cast<uint64_t>(row_bytes),
                      to + row * row_bytes);
  }
}

// The batch's rows of the arrays, in the order in which these lie in staging memory.
std::vector<Lane::Slice> SlicesOf(const Batch& batch, const std::vector<int64_t>& row_bytes,
                                  const std::vector<uint64_t>& offsets) {
  std::vector<Lane::Slice> slices;
  for (size_t array = 0; array < row_bytes.size(); ++array) {
    const int64_t bytes = row_bytes[array];
    const int64_t most = std::max<int64_t>(static_cast<int64_t>(kSliceBytes) / bytes, 1);
    uint64_t offset = offsets[array];
    for (const Piece& piece : batch.pieces) {
      for (int64_t row = 0; row < piece.rows; row += most) {
        const int64_t rows = std::min(most, piece.rows - row);
        const auto size = static_cast<uint64_t>(rows * bytes);
        slices.push_back({&JobOf(piece), array, piece.row_begin + row, rows, offset, size});
        offset += size;
      }
    }
  }
  return slices;
}

std::vector<void*> Addresses(const Buffer* buffer, const std::vector<uint64_t>& offsets) {
  std::vector<void*> addresses;
  addresses.reserve(offsets.size());
  for (uint64_t offset : offsets) {
    addresses.push_back(static_cast<std::byte*>(buffer->data()) + offset);
  }
  return addresses;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Lane>> Lane::Create(Device& device, Metrics* metrics,
                                                   TunedChoices* tuned, CopyCrew& crew) {
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device.CreateStream());
  return std::unique_ptr<Lane>(new Lane(device, std::move(stream), metrics, tuned, crew));
}

Lane::Lane(Device& device, std::unique_ptr<Stream> stream, Metrics* metrics, TunedChoices* tuned,
           CopyCrew& crew)
    : device_(device),
      stream_(std::move(stream)),
      metrics_(metrics),
      tuned_(tuned),
      crew_(crew),
      graphs_(kMaxGraphs, kRecordAtUse) {
  if (metrics_ != nullptr) device_metrics_ = metrics_->Device(device_.info().id);
}

Lane::Layout Lane::LayoutOf(const Operation& operation, int64_t rows) {
  Layout layout;
  for (int64_t row_bytes : operation.input_row_bytes()) {
    layout.input_offsets.push_back(layout.input_bytes);
    layout.input_bytes += Align(static_cast<uint64_t>(rows * row_bytes));
  }
  layout.constant_offset = layout.input_bytes;
  layout.input_bytes += Align(operation.constant().size());
  for (int64_t row_bytes : operation.output_row_bytes()) {
    layout.output_offsets.push_back(layout.output_bytes);
    layout.output_bytes += Align(static_cast<uint64_t>(rows * row_bytes));
  }
  return layout;
}

absl::Status Lane::Grow(std::unique_ptr<Buffer>& buffer, uint64_t bytes, MemoryKind kind) {
  if (buffer != nullptr && buffer->size() >= bytes) return absl::OkStatus();
  // At least double, so that a slowly growing batch does not allocate at every step.
  const uint64_t grown = buffer == nullptr ? bytes : std::max(bytes, 2 * buffer->size());
  graphs_.Clear();
  buffer.reset();
  auto larger = device_.Allocate(std::max<uint64_t>(grown, kAlignment), kind);
  if (!larger.ok()) larger = device_.Allocate(std::max<uint64_t>(bytes, kAlignment), kind);
  NIBBLE_RETURN_IF_ERROR(larger.status());
  buffer = *std::move(larger);
  return absl::OkStatus();
}

BatchResult Lane::Run(const Batch& batch) {
  const Operation& operation = *JobOf(batch.pieces.front()).operation;
  const Problem problem = operation.ProblemFor(batch.rows);
  const Choice choice = tuned_ != nullptr ? tuned_->SelectFor(problem, device_.info())
                                          : Select(problem, device_.info());
  BatchResult result;
  result.kernel = choice.kernel;
  result.status = device_.health();
  if (result.status.ok()) {
    result.status = Execute(batch, operation, problem, choice, &result.compute_us);
  }
  if (result.status.ok()) {
    Report(problem, choice, result.compute_us);
    operation.CountBatch(batch.rows, result.compute_us);
  } else {
    graphs_.Clear();
    if (absl::Status health = device_.health(); !health.ok()) result.status = std::move(health);
    log::Warn("batch failed", {{"device", device_.info().id},
                               {"op", OpName(problem.op)},
                               {"rows", batch.rows},
                               {"choice", ToString(choice)},
                               {"error", MessageOf(result.status)}});
  }
  if (log::Enabled(log::Level::kDebug)) {
    log::Debug("batch", {{"device", device_.info().id},
                         {"op", OpName(problem.op)},
                         {"rows", batch.rows},
                         {"requests", batch.pieces.size()},
                         {"choice", ToString(choice)},
                         {"compute_us", result.compute_us},
                         {"status", absl::StatusCodeToString(result.status.code())}});
  }
  return result;
}

absl::Status Lane::Execute(const Batch& batch, const Operation& operation, const Problem& problem,
                           const Choice& choice, double* compute_us) {
  const Layout layout = LayoutOf(operation, batch.rows);
  NIBBLE_RETURN_IF_ERROR(Grow(staging_in_, layout.input_bytes, MemoryKind::kStaging));
  NIBBLE_RETURN_IF_ERROR(Grow(staging_out_, layout.output_bytes, MemoryKind::kStaging));
  const bool copy_in = layout.input_bytes > device_.info().zero_copy_input_bytes;
  const bool copy_out = layout.output_bytes > device_.info().zero_copy_output_bytes;
  if (copy_in) NIBBLE_RETURN_IF_ERROR(Grow(device_in_, layout.input_bytes, MemoryKind::kDevice));
  if (copy_out) NIBBLE_RETURN_IF_ERROR(Grow(device_out_, layout.output_bytes, MemoryKind::kDevice));
  const uint64_t workspace_bytes = device_.WorkspaceBytes(problem, choice);
  if (workspace_bytes > 0) {
    NIBBLE_RETURN_IF_ERROR(Grow(workspace_, workspace_bytes, MemoryKind::kDevice));
  }

  const std::span<const std::byte> constant = operation.constant();
  if (!constant.empty()) {
    std::memcpy(static_cast<std::byte*>(staging_in_->data()) + layout.constant_offset,
                constant.data(), constant.size());
  }
  // A recorded batch copies its inputs itself.
  const bool streamed = copy_in && batch.rows > kMaxGraphRows;
  const absl::Status gathered = GatherInputs(batch, operation, layout, streamed);

  const Buffer* in = copy_in ? device_in_.get() : staging_in_.get();
  const Buffer* out = copy_out ? device_out_.get() : staging_out_.get();
  Work work{.operation = operation,
            .choice = choice,
            .copy_in = copy_in && !streamed,
            .copy_out = copy_out,
            .input_bytes = layout.input_bytes,
            .output_bytes = layout.output_bytes};
  work.args.inputs = Addresses(in, layout.input_offsets);
  work.args.outputs = Addresses(out, layout.output_offsets);
  work.args.constant = static_cast<const std::byte*>(in->data()) + layout.constant_offset;
  work.args.rows = batch.rows;
  work.args.first_row = batch.pieces.front().row_begin;
  work.args.workspace = workspace_bytes > 0 ? workspace_->data() : nullptr;

  const absl::Status started = gathered.ok() ? Start(batch, work) : gathered;
  // Also after a failure: what was enqueued still reads the buffers.
  const absl::Status done = stream_->Synchronize();
  NIBBLE_RETURN_IF_ERROR(started);
  NIBBLE_RETURN_IF_ERROR(done);
  NIBBLE_ASSIGN_OR_RETURN(*compute_us,
                          stream_->MicrosecondsBetween(kMarkComputeBegin, kMarkComputeEnd));

  ScatterOutputs(batch, operation, layout);
  return absl::OkStatus();
}

template <class Copy, class Progress>
void Lane::ForEach(std::span<const Slice> slices, const Copy& copy, const Progress& progress) {
  uint64_t bytes = 0;
  for (const Slice& slice : slices) bytes += slice.bytes;
  if (bytes < kLeastForCrew) {
    for (const Slice& slice : slices) copy(slice);
    if (!slices.empty()) progress(slices.size());
  } else {
    crew_.Run(
        slices.size(), [&](size_t i) { copy(slices[i]); }, progress);
  }
}

absl::Status Lane::GatherInputs(const Batch& batch, const Operation& operation,
                                const Layout& layout, bool streamed) {
  auto* const staging = static_cast<std::byte*>(staging_in_->data());
  const std::vector<int64_t>& row_bytes = operation.input_row_bytes();
  const std::vector<Slice> slices = SlicesOf(batch, row_bytes, layout.input_offsets);
  absl::Status status;
  uint64_t copied = 0;  // of the inputs, to the device
  const auto copy_until = [&](uint64_t end) {
    if (!status.ok()) return;
    status = stream_->Copy(static_cast<std::byte*>(device_in_->data()) + copied, staging + copied,
                           end - copied);
    copied = end;
  };
  size_t passed = 0;  // slices already considered as the end of a part
  ForEach(
      slices,
      [&](const Slice& slice) {
        Gather(slice.job->inputs[slice.array], slice.row_begin, slice.rows, row_bytes[slice.array],
               staging + slice.offset);
      },
      [&](size_t gathered) {
        if (!streamed) return;
        // Where a part ends depends on the slices alone, not on which thread was done when: tests
        // count the copies.
        for (; passed < gathered; ++passed) {
          const bool last = passed + 1 == slices.size();
          const uint64_t end = last ? layout.input_bytes : slices[passed + 1].offset;
          if (last || end >= copied + kStreamedBytes) copy_until(end);
        }
      });
  return status;
}

void Lane::ScatterOutputs(const Batch& batch, const Operation& operation, const Layout& layout) {
  const auto* const staging = static_cast<const std::byte*>(staging_out_->data());
  const std::vector<int64_t>& row_bytes = operation.output_row_bytes();
  const std::vector<Slice> slices = SlicesOf(batch, row_bytes, layout.output_offsets);
  ForEach(
      slices,
      [&](const Slice& slice) {
        std::memcpy(slice.job->outputs[slice.array] + slice.row_begin * row_bytes[slice.array],
                    staging + slice.offset, slice.bytes);
      },
      [](size_t) {});
}

absl::Status Lane::Start(const Batch& batch, const Work& work) {
  if (!records_ || batch.rows > kMaxGraphRows || !work.operation.repeats()) return Enqueue(work);
  const GraphCache::Plan plan = graphs_.Use({batch.key, batch.rows}, work.choice);
  if (plan.graph != nullptr) return stream_->Launch(*plan.graph);
  if (!plan.record) return Enqueue(work);
  std::unique_ptr<Graph> recorded = Record(work);
  if (recorded == nullptr) {
    graphs_.Refuse();
    return Enqueue(work);
  }
  Graph& graph = *recorded;
  graphs_.Put(std::move(recorded));
  return stream_->Launch(graph);
}

absl::Status Lane::Enqueue(const Work& work) {
  if (work.copy_in) {
    NIBBLE_RETURN_IF_ERROR(
        stream_->Copy(device_in_->data(), staging_in_->data(), work.input_bytes));
  }
  NIBBLE_RETURN_IF_ERROR(stream_->Mark(kMarkComputeBegin));
  NIBBLE_RETURN_IF_ERROR(work.operation.Launch(device_, work.choice, work.args, *stream_));
  NIBBLE_RETURN_IF_ERROR(stream_->Mark(kMarkComputeEnd));
  if (!work.copy_out) return absl::OkStatus();
  return stream_->Copy(staging_out_->data(), device_out_->data(), work.output_bytes);
}

std::unique_ptr<Graph> Lane::Record(const Work& work) {
  absl::Status status = stream_->BeginCapture();
  if (!status.ok()) {
    if (absl::IsUnimplemented(status)) records_ = false;
    return nullptr;
  }
  status = Enqueue(work);
  auto graph = stream_->EndCapture();
  return status.ok() && graph.ok() ? *std::move(graph) : nullptr;
}

void Lane::Report(const Problem& problem, const Choice& choice, double compute_us) {
  if (metrics_ == nullptr) return;
  const Traffic traffic = TrafficOf(problem);
  const double seconds = compute_us * 1e-6;
  KernelMetrics*& handle =
      kernel_metrics_[{problem.op, problem.weight.format, choice.kernel.data()}];
  if (handle == nullptr) {
    const bool has_weight = problem.op == Op::kMatmul || problem.op == Op::kDequantize;
    handle = metrics_->Kernel(
        OpName(problem.op), has_weight ? FormatName(problem.weight.format) : "none", choice.kernel);
  }
  handle->BatchDone(seconds, traffic.read_bytes, traffic.written_bytes);
  device_metrics_->AddTraffic(traffic.read_bytes + traffic.written_bytes, seconds);
}

}  // namespace nibble::server
