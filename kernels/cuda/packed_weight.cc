#include "kernels/cuda/packed_weight.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "kernels/core/column_order.h"
#include "kernels/core/packed_units.h"

namespace nibble::cuda {
namespace {

constexpr uint64_t kTooLarge = std::numeric_limits<int64_t>::max();
constexpr int64_t kChunkBytes = int64_t{64} << 20;

bool HasZeroPoints(const WeightSpec& spec) {
  return spec.format == Format::kInt4 && spec.has_zero_points;
}
bool HasGroupIndex(const WeightSpec& spec) {
  return spec.format == Format::kInt4 && spec.has_group_index;
}
// An FP8 weight has one even without: PackCodesKernel marks rows with a NaN there.
bool HasBias(const WeightSpec& spec) { return spec.has_bias || spec.format == Format::kFP8; }

ScaleKind ScaleKindOf(const WeightSpec& spec) {
  switch (spec.format) {
    case Format::kDense:
      return ScaleKind::kNone;
    case Format::kNF4:
    case Format::kFP4:
      return spec.k % spec.block_size == 0 ? ScaleKind::kTiled : ScaleKind::kFlat;
    case Format::kInt4:
      return ScaleKind::kTiled;
    case Format::kFP8:
      return ScaleKind::kGrid;
  }
  return ScaleKind::kNone;
}

// Inputs that share a scale in the canonical weight.
int64_t CanonicalGroupSize(const WeightSpec& spec) {
  switch (spec.format) {
    case Format::kDense:
      return spec.k;
    case Format::kNF4:
    case Format::kFP4:
      return spec.block_size;
    case Format::kInt4:
      return std::min(spec.group_size, spec.k);
    case Format::kFP8:
      return spec.scale_layout == ScaleLayout::kBlock ? std::min(spec.scale_block_k, spec.k)
                                                      : spec.k;
  }
  return spec.k;
}

// Inputs that share a stored scale: a unit's where a group covers whole units, so that the kernels
// find one for each.
int64_t GroupSize(const WeightSpec& spec) {
  const int64_t group_size = CanonicalGroupSize(spec);
  const bool whole_units = ScaleKindOf(spec) == ScaleKind::kTiled && core::ScalesPerUnit(spec) == 1;
  return whole_units ? kUnitInputs : group_size;
}

// The one scale of a tensor is stored for each row.
int64_t RowsPerScale(const WeightSpec& spec) {
  if (spec.format != Format::kFP8 || spec.scale_layout != ScaleLayout::kBlock) return 1;
  return std::min(spec.scale_block_n, spec.n);
}

// INT4 keeps 16-bit scales as they are; others are widened.
DType StoredScaleType(const WeightSpec& spec) {
  return spec.format == Format::kInt4 ? spec.scale_dtype : DType::kF32;
}

int64_t CanonicalRowBytes(const WeightSpec& spec) {
  switch (spec.format) {
    case Format::kDense:
      return spec.k * static_cast<int64_t>(DTypeBytes(spec.dtype));
    case Format::kNF4:
    case Format::kFP4:
    case Format::kInt4:
      return CeilDiv(spec.k, 2);
    case Format::kFP8:
      return spec.k;
  }
  return 0;
}

// log2 of a power of two, else -1.
int32_t ShiftOf(int32_t value) {
  const auto bits = static_cast<uint32_t>(value);
  return std::has_single_bit(bits) ? std::countr_zero(bits) : -1;
}

// Copies and kernels of one upload. The first error ends it.
class Packer {
 public:
  Packer(const CanonicalWeight& weight, const WeightLayout& layout, Context& context, char* memory,
         char* scratch, cudaStream_t stream)
      : weight_(weight),
        spec_(weight.spec),
        layout_(layout),
        context_(context),
        memory_(memory),
        scratch_(scratch),
        stream_(stream),
        column_order_(HasGroupIndex(spec_) ? core::ColumnOrder(weight) : std::vector<int32_t>()),
        view_(MakeView()) {}

  Status Run() {
    NIBBLE_RETURN_IF_ERROR(PackBias());
    NIBBLE_RETURN_IF_ERROR(PackScales());
    NIBBLE_RETURN_IF_ERROR(PackCodes());
    return Check(cudaStreamSynchronize(stream_));
  }
  const WeightView& view() const { return view_; }

 private:
  Status Check(cudaError_t error) { return context_.Check(error, "packing a weight"); }

  Status CopyTo(void* to, const void* from, uint64_t bytes) {
    return Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
  }
  // Places `bytes` at `offset` of the scratch memory.
  StatusOr<const char*> Stage(const HostBytes& bytes, uint64_t offset = 0) {
    NIBBLE_RETURN_IF_ERROR(CopyTo(scratch_ + offset, bytes.data(), bytes.size()));
    return scratch_ + offset;
  }

  WeightView MakeView() const {
    WeightView view;
    view.n = static_cast<int32_t>(spec_.n);
    view.k = static_cast<int32_t>(spec_.k);
    view.units = static_cast<int32_t>(CeilDiv(spec_.k, kUnitInputs));
    view.dense_type = static_cast<Element>(spec_.dtype);
    view.scale_kind = ScaleKindOf(spec_);
    view.scale_type = static_cast<Element>(StoredScaleType(spec_));
    view.group_size = static_cast<int32_t>(GroupSize(spec_));
    view.groups = static_cast<int32_t>(layout_.scale_groups);
    view.rows_per_scale = static_cast<int32_t>(RowsPerScale(spec_));
    view.group_shift = ShiftOf(view.group_size);
    view.rows_shift = ShiftOf(view.rows_per_scale);
    view.codes = memory_ + layout_.codes_offset;
    view.scales = memory_ + layout_.scales_offset;
    if (spec_.format == Format::kInt4) view.codes_kind = Codes::kInt4;
    if (spec_.format == Format::kFP8) view.codes_kind = Codes::kFP8;
    if (core::HasTable(spec_.format)) {
      view.codes_kind = Codes::kTable;
      view.block_shift = std::countr_zero(static_cast<uint64_t>(spec_.block_size));
      const float* table = spec_.format == Format::kFP4 ? kFP4Table : kNF4Table;
      std::copy(table, table + 16, view.table);
    }
    if (HasZeroPoints(spec_)) {
      view.zero_points = reinterpret_cast<uint8_t*>(memory_ + layout_.zero_points_offset);
    }
    if (HasGroupIndex(spec_)) {
      // One or the other lies there.
      const auto* index = reinterpret_cast<int32_t*>(memory_ + layout_.group_index_offset);
      if (column_order_.empty()) {
        view.group_index = index;
      } else {
        view.column_order = index;
        view.column_place = index + spec_.k;
      }
    }
    if (HasBias(spec_)) view.bias = bias();
    return view;
  }

  float* bias() const { return reinterpret_cast<float*>(memory_ + layout_.bias_offset); }

  Status PackBias() {
    if (!HasBias(spec_)) return absl::OkStatus();
    if (!spec_.has_bias) {
      return Check(
          cudaMemsetAsync(bias(), 0, static_cast<size_t>(spec_.n) * sizeof(float), stream_));
    }
    NIBBLE_ASSIGN_OR_RETURN(const char* from, Stage(weight_.bias));
    return Check(
        LaunchWiden(from, static_cast<Element>(spec_.bias_dtype), spec_.n, bias(), stream_));
  }

  Status PackScales() {
    auto* scales = memory_ + layout_.scales_offset;
    switch (view_.scale_kind) {
      case ScaleKind::kNone:
        return absl::OkStatus();
      case ScaleKind::kFlat:
        return Absmax(reinterpret_cast<float*>(scales));
      case ScaleKind::kGrid: {
        NIBBLE_ASSIGN_OR_RETURN(const char* from, Stage(weight_.scales));
        const int64_t groups = CeilDiv(spec_.k, view_.group_size);
        const int64_t from_stride = spec_.scale_layout == ScaleLayout::kTensor ? 0 : groups;
        return Check(LaunchWidenRows(from, static_cast<Element>(spec_.scale_dtype), from_stride,
                                     CeilDiv(spec_.n, view_.rows_per_scale), groups,
                                     reinterpret_cast<float*>(scales), view_.groups, stream_));
      }
      case ScaleKind::kTiled:
        break;
    }
    const int64_t group_size = CanonicalGroupSize(spec_);
    const auto groups = static_cast<int32_t>(CeilDiv(spec_.k, group_size));
    const auto repeat = static_cast<int32_t>(CeilDiv(group_size, view_.group_size));
    const auto scale_bytes = static_cast<int>(DTypeBytes(StoredScaleType(spec_)));
    if (core::HasTable(spec_.format)) {
      auto* flat = reinterpret_cast<float*>(scratch_ + AbsmaxScratchBytes(spec_));
      NIBBLE_RETURN_IF_ERROR(Absmax(flat));
      return Check(
          LaunchTile(flat, scale_bytes, view_.n, groups, repeat, scales, view_.groups, stream_));
    }
    NIBBLE_ASSIGN_OR_RETURN(const char* from, Stage(weight_.scales));
    NIBBLE_RETURN_IF_ERROR(Check(
        LaunchTile(from, scale_bytes, view_.n, groups, repeat, scales, view_.groups, stream_)));
    if (HasGroupIndex(spec_)) {
      void* to = memory_ + layout_.group_index_offset;
      NIBBLE_RETURN_IF_ERROR(
          column_order_.empty()
              ? CopyTo(to, weight_.group_index.data(), weight_.group_index.size())
              : CopyTo(to, column_order_.data(), column_order_.size() * sizeof(int32_t)));
    }
    if (!HasZeroPoints(spec_)) return absl::OkStatus();
    NIBBLE_ASSIGN_OR_RETURN(const char* zeros, Stage(weight_.zero_points));
    return Check(LaunchTile(zeros, 1, view_.n, groups, repeat, memory_ + layout_.zero_points_offset,
                            view_.groups, stream_));
  }

  // Flat binary32 absmax from the canonical parts, staged in front of the scratch memory.
  Status Absmax(float* to) {
    if (!spec_.nested) return CopyTo(to, weight_.scales.data(), weight_.scales.size());
    const uint64_t nested_offset = core::AlignedSize(weight_.scales.size());
    const uint64_t map_offset = nested_offset + core::AlignedSize(weight_.nested_scales.size());
    NIBBLE_ASSIGN_OR_RETURN(const char* codes, Stage(weight_.scales));
    NIBBLE_ASSIGN_OR_RETURN(const char* nested, Stage(weight_.nested_scales, nested_offset));
    NIBBLE_ASSIGN_OR_RETURN(const char* map, Stage(weight_.nested_map, map_offset));
    return Check(LaunchExpandAbsmax(
        reinterpret_cast<const uint8_t*>(codes), reinterpret_cast<const float*>(map),
        reinterpret_cast<const float*>(nested), spec_.nested_block_size, weight_.nested_offset,
        static_cast<int64_t>(weight_.scales.size()), to, stream_));
  }

  Status PackCodes() {
    char* codes = memory_ + layout_.codes_offset;
    if (spec_.format == Format::kDense) {
      return CopyTo(codes, weight_.codes.data(), weight_.codes.size());
    }
    const int64_t row_bytes = CanonicalRowBytes(spec_);
    for (int64_t begin = 0; begin < spec_.n; begin += layout_.chunk_rows) {
      const int64_t end = std::min(spec_.n, begin + layout_.chunk_rows);
      int64_t first_byte = begin * row_bytes;
      int64_t end_byte = end * row_bytes;
      if (core::HasTable(spec_.format)) {
        first_byte = begin * spec_.k / 2;
        end_byte = CeilDiv(end * spec_.k, 2);
      }
      NIBBLE_RETURN_IF_ERROR(CopyTo(scratch_, weight_.codes.data() + first_byte,
                                    static_cast<uint64_t>(end_byte - first_byte)));
      NIBBLE_RETURN_IF_ERROR(Check(LaunchPackCodes(
          view_, reinterpret_cast<const uint8_t*>(scratch_), row_bytes, first_byte * 2,
          static_cast<int32_t>(begin), static_cast<int32_t>(end), codes, bias(), stream_)));
    }
    return absl::OkStatus();
  }

 public:
  // Canonical parts of an absmax array, before it is tiled.
  static uint64_t AbsmaxScratchBytes(const WeightSpec& spec) {
    if (!spec.nested) return 0;
    const int64_t blocks = CeilDiv(spec.n * spec.k, spec.block_size);
    const int64_t nested = CeilDiv(blocks, spec.nested_block_size);
    return core::AlignedSize(static_cast<uint64_t>(blocks)) +
           core::AlignedSize(static_cast<uint64_t>(nested) * sizeof(float)) +
           core::AlignedSize(256 * sizeof(float));
  }

 private:
  const CanonicalWeight& weight_;
  const WeightSpec& spec_;
  const WeightLayout& layout_;
  Context& context_;
  char* memory_;
  char* scratch_;
  cudaStream_t stream_;
  const std::vector<int32_t> column_order_;
  WeightView view_;
};

}  // namespace

WeightLayout::WeightLayout(const WeightSpec& spec) {
  const int64_t units = CeilDiv(spec.k, kUnitInputs);
  const int64_t rows = PaddedRows(spec.n);
  const int64_t groups = CeilDiv(spec.k, GroupSize(spec));
  const int per_unit = core::ScalesPerUnit(spec);
  scale_groups = per_unit > 1 ? std::max(groups, units * per_unit) : groups;
  // cuBLASLt asks for rows of fours.
  if (ScaleKindOf(spec) == ScaleKind::kGrid && groups > 1) scale_groups = CeilDiv(groups, 4) * 4;
  const auto scale_bytes = static_cast<int64_t>(DTypeBytes(StoredScaleType(spec)));

  switch (spec.format) {
    case Format::kDense:
      codes_offset = Place(spec.n, CanonicalRowBytes(spec));
      break;
    case Format::kNF4:
    case Format::kFP4:
    case Format::kInt4:
      codes_offset = Place(rows, units * (kUnitInputs / 2));
      break;
    case Format::kFP8:
      codes_offset = Place(rows, units * kUnitInputs);
      break;
  }
  int64_t staged_rows = 0;  // of canonical scales, widened
  int64_t staged_row_bytes = 0;
  switch (ScaleKindOf(spec)) {
    case ScaleKind::kNone:
      break;
    case ScaleKind::kFlat:
      scales_offset = Place(CeilDiv(spec.n * spec.k, spec.block_size), scale_bytes);
      break;
    case ScaleKind::kTiled:
      scales_offset = Place(rows, scale_groups * scale_bytes);
      staged_rows = spec.n;
      staged_row_bytes = groups * scale_bytes;
      break;
    case ScaleKind::kGrid:
      staged_rows = CeilDiv(spec.n, RowsPerScale(spec));
      staged_row_bytes = groups * scale_bytes;
      scales_offset = Place(staged_rows, scale_groups * scale_bytes);
      break;
  }
  if (HasZeroPoints(spec)) zero_points_offset = Place(rows, scale_groups);
  if (HasGroupIndex(spec)) group_index_offset = Place(spec.k, 2 * sizeof(int32_t));
  if (HasBias(spec)) bias_offset = Place(spec.n, sizeof(float));

  const int64_t row_bytes = CanonicalRowBytes(spec);
  chunk_rows = std::max<int64_t>(kUnitRows, kChunkBytes / row_bytes / kUnitRows * kUnitRows);
  chunk_rows = std::min(chunk_rows, rows);
  if (total_bytes == kTooLarge) {
    scratch_bytes = 0;
    return;
  }
  // Parts are below 2^63 bytes in all: none of these overflows.
  const int64_t staged_codes = spec.format == Format::kDense ? 0 : chunk_rows * row_bytes + 1;
  const int64_t staged_bias = spec.has_bias ? spec.n * int64_t{sizeof(float)} : 0;
  const uint64_t staged_scales =
      static_cast<uint64_t>(staged_rows * staged_row_bytes) +
      (core::HasTable(spec.format) ? Packer::AbsmaxScratchBytes(spec) : 0);
  scratch_bytes = core::AlignedSize(std::max(
      {static_cast<uint64_t>(staged_codes), static_cast<uint64_t>(staged_bias), staged_scales}));
}

uint64_t WeightLayout::Place(int64_t rows, int64_t row_bytes) {
  const uint64_t offset = total_bytes;
  const auto bytes = static_cast<uint64_t>(CheckedMul(rows, row_bytes).value_or(kTooLarge));
  const uint64_t largest = kTooLarge - core::kAlignment;
  if (bytes > largest || total_bytes > largest - bytes) {
    total_bytes = kTooLarge;
  } else {
    total_bytes += core::AlignedSize(bytes);
  }
  return offset;
}

StatusOr<std::unique_ptr<DeviceWeight>> PackWeight(const CanonicalWeight& weight,
                                                   std::shared_ptr<Context> context,
                                                   core::BudgetReservation* reservation,
                                                   cudaStream_t stream) {
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max() - kUnitInputs;
  const WeightSpec& spec = weight.spec;
  if (spec.n > kLargest || spec.k > kLargest) {
    return absl::UnimplementedError(
        fmt::format("weight: expected at most {} outputs and inputs; received {}x{}", kLargest,
                    spec.n, spec.k));
  }
  const WeightLayout layout(spec);
  NIBBLE_ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::Create(context, layout.total_bytes,
                                                                    reservation, "a weight"));
  NIBBLE_ASSIGN_OR_RETURN(
      const DeviceMemory scratch,
      DeviceMemory::Create(context, layout.scratch_bytes, reservation, "packing a weight"));
  const DeviceGuard guard(context->ordinal());
  Packer packer(weight, layout, *context, memory.data(), scratch.data(), stream);
  if (Status packed = packer.Run(); !packed.ok()) {
    cudaStreamSynchronize(stream);  // nothing may still write what is freed now
    return packed;
  }
  return std::make_unique<CudaWeight>(spec, context, std::move(memory), packer.view(),
                                      weight.input_scale);
}

}  // namespace nibble::cuda
