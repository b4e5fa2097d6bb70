#include "server/checkpoint/fuse.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "fmt/format.h"
#include "nibble/numeric.h"
#include "server/checkpoint/module_match.h"
#include "server/checkpoint/quoted.h"

namespace nibble::checkpoint {
namespace {

constexpr std::array<std::string_view, 3> kQkv = {"q_proj", "k_proj", "v_proj"};
constexpr std::array<std::string_view, 2> kGateUp = {"gate_proj", "up_proj"};

absl::Status Cannot(std::string why) { return absl::UnimplementedError(std::move(why)); }

int64_t SumOfBytes(const std::vector<PartPlan>& pieces) {
  int64_t bytes = 0;
  for (const PartPlan& piece : pieces) bytes += piece.bytes;
  return bytes;
}

PartPlan Concatenated(std::vector<PartPlan> pieces) {
  const int64_t bytes = SumOfBytes(pieces);
  if (bytes == 0) return {};
  return Written(bytes, [pieces = std::move(pieces)](std::span<std::byte> out) {
    for (const PartPlan& piece : pieces) {
      const auto size = static_cast<size_t>(piece.bytes);
      Fill(piece, out.first(size));
      out = out.subspan(size);
    }
  });
}

// The codes of parts of `rows` each, one after the other.
PartPlan ConcatenatedCodes(std::vector<PartPlan> pieces, std::vector<int64_t> rows) {
  const CodeTile preferred = pieces.front().preferred_tile;
  const bool tiled = std::all_of(pieces.begin(), pieces.end(), [](const PartPlan& piece) {
    return static_cast<bool>(piece.write_tile);
  });
  PartPlan codes = Concatenated(pieces);
  if (!tiled) return codes;
  codes.preferred_tile = preferred;
  codes.write_tile = [pieces = std::move(pieces), rows = std::move(rows)](
                         const CodeTile& tile, std::byte* out, int64_t stride) {
    int64_t begin = 0;  // of a part
    for (size_t i = 0; i < pieces.size(); begin += rows[i++]) {
      CodeTile part = tile;
      part.row = std::max(tile.row, begin) - begin;
      part.rows = std::min(tile.row + tile.rows - begin, rows[i]) - part.row;
      if (part.rows <= 0) continue;
      pieces[i].write_tile(part, out + (begin + part.row - tile.row) * stride, stride);
    }
  };
  return codes;
}

PartPlan Filled(int64_t bytes, std::byte value) {
  return Written(bytes, [value](std::span<std::byte> out) {
    std::memset(out.data(), static_cast<int>(value), out.size());
  });
}

// Absmax [ceil(N*K / block)] as binary32, from its 8-bit codes where it is nested.
PartPlan PlainAbsmax(const LayerPlan& part) {
  if (!part.spec.nested) return part.scales;
  const int64_t count = part.scales.bytes;
  return Written(4 * count, [part, count](std::span<std::byte> out) {
    std::vector<std::byte> codes(static_cast<size_t>(count));
    std::vector<std::byte> scales(static_cast<size_t>(part.nested_scales.bytes));
    std::vector<std::byte> map(static_cast<size_t>(part.nested_map.bytes));
    Fill(part.scales, codes);
    Fill(part.nested_scales, scales);
    Fill(part.nested_map, map);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t block = i / part.spec.nested_block_size;
      const auto code = static_cast<int64_t>(codes[static_cast<size_t>(i)]);
      const float product = LoadAsFloat(map.data(), DType::kF32, code) *
                            LoadAsFloat(scales.data(), DType::kF32, block);
      const float absmax = product + part.nested_offset;
      StoreFromFloat(out.data(), DType::kF32, i, absmax);
    }
  });
}

// One scale for each output, from one for all.
PartPlan ChannelScales(const LayerPlan& part) {
  if (part.spec.scale_layout == ScaleLayout::kChannel) return part.scales;
  const PartPlan scale = part.scales;
  return Written(scale.bytes * part.spec.n, [scale](std::span<std::byte> out) {
    std::array<std::byte, 4> one{};
    const std::span<std::byte> bytes = std::span(one).first(static_cast<size_t>(scale.bytes));
    Fill(scale, bytes);
    for (; !out.empty(); out = out.subspan(bytes.size())) {
      std::copy(bytes.begin(), bytes.end(), out.begin());
    }
  });
}

std::vector<std::byte> BytesOf(const PartPlan& part) {
  std::vector<std::byte> bytes(static_cast<size_t>(part.bytes));
  Fill(part, bytes);
  return bytes;
}

// What all formats share: every part takes the same input and decodes to the same type.
absl::Status CheckAlike(const std::vector<LayerPlan>& parts) {
  const WeightSpec& first = parts.front().spec;
  for (const LayerPlan& part : parts) {
    const WeightSpec& spec = part.spec;
    const auto differ = [&](std::string_view what, const auto& a, const auto& b) {
      return Cannot(fmt::format("the {} of {} is {}, that of {} {}", what,
                                Quoted(parts.front().layer.name), a, Quoted(part.layer.name), b));
    };
    if (spec.format != first.format) {
      return differ("format", FormatName(first.format), FormatName(spec.format));
    }
    if (spec.k != first.k) return differ("number of inputs", first.k, spec.k);
    if (spec.dtype != first.dtype) {
      return differ("type", DTypeName(first.dtype), DTypeName(spec.dtype));
    }
    if (spec.scale_dtype != first.scale_dtype) {
      return differ("type of scales", DTypeName(first.scale_dtype), DTypeName(spec.scale_dtype));
    }
    if (spec.format == Format::kInt4 && spec.group_size != first.group_size) {
      return differ("group size", first.group_size, spec.group_size);
    }
    if (spec.block_size != first.block_size) {
      return differ("block size", first.block_size, spec.block_size);
    }
    if (spec.has_input_scale != first.has_input_scale) {
      return differ("static input scale", first.has_input_scale ? "given" : "not given",
                    spec.has_input_scale ? "given" : "not");
    }
  }
  return absl::OkStatus();
}

absl::Status FuseTable(const std::vector<LayerPlan>& parts, LayerPlan* fused) {
  std::vector<PartPlan> absmax;
  for (const LayerPlan& part : parts) {
    const WeightSpec& spec = part.spec;
    if (&part != &parts.back() && spec.n * spec.k % spec.block_size != 0) {
      return Cannot(fmt::format("the {} elements of {} are no multiple of the block of {}",
                                spec.n * spec.k, Quoted(part.layer.name), spec.block_size));
    }
    absmax.push_back(PlainAbsmax(part));
  }
  fused->spec.nested = false;
  fused->spec.nested_block_size = WeightSpec().nested_block_size;
  fused->scales = Concatenated(std::move(absmax));
  return absl::OkStatus();
}

absl::Status FuseInt4(const std::vector<LayerPlan>& parts, LayerPlan* fused) {
  std::vector<PartPlan> scales;
  std::vector<PartPlan> zeros;
  const int64_t groups = CeilDiv(fused->spec.k, fused->spec.group_size);
  const bool any_zeros = std::any_of(
      parts.begin(), parts.end(), [](const LayerPlan& part) { return part.spec.has_zero_points; });
  for (const LayerPlan& part : parts) {
    if (part.spec.has_group_index != parts.front().spec.has_group_index ||
        BytesOf(part.group_index) != BytesOf(parts.front().group_index)) {
      return Cannot(fmt::format("the group indices of {} and {} differ",
                                Quoted(parts.front().layer.name), Quoted(part.layer.name)));
    }
    scales.push_back(part.scales);
    zeros.push_back(part.spec.has_zero_points ? part.zero_points
                                              : Filled(part.spec.n * groups, std::byte{8}));
  }
  fused->scales = Concatenated(std::move(scales));
  fused->spec.has_zero_points = any_zeros;
  if (any_zeros) fused->zero_points = Concatenated(std::move(zeros));
  fused->group_index = parts.front().group_index;
  return absl::OkStatus();
}

absl::Status FuseFp8(const std::vector<LayerPlan>& parts, LayerPlan* fused) {
  const bool blocks = parts.front().spec.scale_layout == ScaleLayout::kBlock;
  const WeightSpec& first = parts.front().spec;
  std::vector<PartPlan> scales;
  for (const LayerPlan& part : parts) {
    const WeightSpec& spec = part.spec;
    if ((spec.scale_layout == ScaleLayout::kBlock) != blocks ||
        (blocks && (spec.scale_block_n != first.scale_block_n ||
                    spec.scale_block_k != first.scale_block_k))) {
      return Cannot(fmt::format("the scales of {} and {} are laid out differently",
                                Quoted(parts.front().layer.name), Quoted(part.layer.name)));
    }
    if (blocks && &part != &parts.back() && spec.n % spec.scale_block_n != 0) {
      return Cannot(fmt::format("the {} outputs of {} are no multiple of the block of {}", spec.n,
                                Quoted(part.layer.name), spec.scale_block_n));
    }
    scales.push_back(blocks ? part.scales : ChannelScales(part));
    fused->input_scale = std::max(fused->input_scale, part.input_scale);
  }
  if (!blocks) fused->spec.scale_layout = ScaleLayout::kChannel;
  fused->scales = Concatenated(std::move(scales));
  return absl::OkStatus();
}

// A part without a bias contributes zeros.
absl::Status FuseBias(const std::vector<LayerPlan>& parts, LayerPlan* fused) {
  WeightSpec& spec = fused->spec;
  spec.has_bias = false;
  spec.bias_dtype = WeightSpec().bias_dtype;
  for (const LayerPlan& part : parts) {
    if (!part.spec.has_bias) continue;
    if (spec.has_bias && part.spec.bias_dtype != spec.bias_dtype) {
      return Cannot(fmt::format("the bias of {} is {}, that of another part {}",
                                Quoted(part.layer.name), DTypeName(part.spec.bias_dtype),
                                DTypeName(spec.bias_dtype)));
    }
    spec.has_bias = true;
    spec.bias_dtype = part.spec.bias_dtype;
  }
  if (!spec.has_bias) return absl::OkStatus();
  std::vector<PartPlan> pieces;
  for (const LayerPlan& part : parts) {
    const auto bytes = part.spec.n * static_cast<int64_t>(DTypeBytes(spec.bias_dtype));
    pieces.push_back(part.spec.has_bias ? part.bias : Filled(bytes, std::byte{0}));
  }
  fused->bias = Concatenated(std::move(pieces));
  return absl::OkStatus();
}

absl::Status FuseScales(const std::vector<LayerPlan>& parts, LayerPlan* fused) {
  switch (fused->spec.format) {
    case Format::kDense:
      return absl::OkStatus();
    case Format::kNF4:
    case Format::kFP4:
      return FuseTable(parts, fused);
    case Format::kInt4:
      return FuseInt4(parts, fused);
    case Format::kFP8:
      return FuseFp8(parts, fused);
  }
  return Cannot("the format cannot be fused");
}

// The parts of `fused` by their indices in `plans`, in order; empty where nothing is to be fused.
// kUnimplemented: there are some, but not all.
absl::StatusOr<std::vector<size_t>> PartsOf(
    std::string_view fused, const std::map<std::string, size_t, std::less<>>& index) {
  const bool qkv = fused.ends_with("qkv_proj");
  const std::span<const std::string_view> names =
      qkv ? std::span<const std::string_view>(kQkv) : std::span<const std::string_view>(kGateUp);
  const std::string_view owner =
      fused.substr(0, fused.size() - std::string_view(qkv ? "qkv_proj" : "gate_up_proj").size());
  std::vector<size_t> parts;
  std::string missing;
  for (std::string_view name : names) {
    const auto it = index.find(fmt::format("{}{}", owner, name));
    if (it == index.end()) {
      missing = fmt::format("{}{}", owner, name);
    } else {
      parts.push_back(it->second);
    }
  }
  if (parts.size() < 2) return std::vector<size_t>();  // other layers of the model go without it
  if (!missing.empty()) return Cannot(fmt::format("there is no {}", Quoted(missing)));
  if (index.contains(fused)) return Cannot("there is a layer of that name already");
  return parts;
}

}  // namespace

void Fill(const PartPlan& part, std::span<std::byte> out) {
  if (part.write) {
    part.write(out);
  } else if (!part.borrowed.empty()) {
    std::memcpy(out.data(), part.borrowed.data(), out.size());
  }
}

absl::StatusOr<LayerPlan> FusePlans(std::string_view name, const std::vector<LayerPlan>& parts) {
  NIBBLE_RETURN_IF_ERROR(CheckAlike(parts));
  LayerPlan fused;
  fused.spec = parts.front().spec;
  fused.spec.n = 0;
  fused.input_scale = parts.front().input_scale;
  std::vector<PartPlan> codes;
  std::vector<int64_t> rows;
  std::vector<std::string> prefixes;
  for (const LayerPlan& part : parts) {
    fused.spec.n += part.spec.n;
    codes.push_back(part.codes);
    rows.push_back(part.spec.n);
    prefixes.insert(prefixes.end(), part.prefixes.begin(), part.prefixes.end());
  }
  fused.codes = ConcatenatedCodes(std::move(codes), std::move(rows));
  NIBBLE_RETURN_IF_ERROR(FuseScales(parts, &fused));
  NIBBLE_RETURN_IF_ERROR(FuseBias(parts, &fused));
  const std::string& dialect = parts.front().layer.dialect;
  NIBBLE_ASSIGN_OR_RETURN(fused, FinishPlan(name, dialect, std::move(fused)));
  fused.prefixes = std::move(prefixes);
  return fused;
}

absl::Status FuseLayers(Fusing fusing, std::vector<LayerPlan>* plans, Notices* notices) {
  if (fusing == Fusing::kNone) return absl::OkStatus();
  std::map<std::string, size_t, std::less<>> index;
  std::set<std::string> candidates;
  for (size_t i = 0; i < plans->size(); ++i) {
    const std::string& name = (*plans)[i].layer.name;
    index.emplace(name, i);
    if (std::string fused = FusedName(name); !fused.empty()) candidates.insert(std::move(fused));
  }
  std::vector<bool> taken(plans->size());
  std::vector<LayerPlan> result;
  for (const std::string& name : candidates) {
    absl::StatusOr<LayerPlan> fused = LayerPlan();
    const absl::StatusOr<std::vector<size_t>> members = PartsOf(name, index);
    if (members.ok() && members->empty()) continue;
    if (members.ok()) {
      std::vector<LayerPlan> parts;
      for (size_t member : *members) parts.push_back((*plans)[member]);
      fused = FusePlans(name, parts);
    } else {
      fused = members.status();
    }
    if (fused.ok()) {
      for (size_t member : *members) taken[member] = true;
      result.push_back(*std::move(fused));
    } else if (fusing == Fusing::kRequired) {
      return absl::UnimplementedError(fmt::format(
          "layer {}: its parts cannot be fused exactly: {}; they are served apart without fusing",
          Quoted(name), MessageOf(fused.status())));
    } else {
      notices->Add(fmt::format("parts are not fused, {}", MessageOf(fused.status())), name);
    }
  }
  for (size_t i = 0; i < plans->size(); ++i) {
    if (!taken[i]) result.push_back(std::move((*plans)[i]));
  }
  std::sort(result.begin(), result.end(),
            [](const LayerPlan& a, const LayerPlan& b) { return a.layer.name < b.layer.name; });
  *plans = std::move(result);
  return absl::OkStatus();
}

}  // namespace nibble::checkpoint
