// Times the ops of the CUDA backend beside cuBLAS BF16 in the same run, and writes JSON:
//   {gpu, driver, commit, read_tbs, copy_tbs, rows: [{op, format, variant, activations, n, k, m,
//    kernel, us, us_cublas_bf16, ratio_cublas_bf16, share_of_limit, batch_invariant}]}
// with the variants sym and zp, of groups of other than 128 inputs sym-g32 and so on, plain and
// nested, w8a16, w8a8 and block.
//
// usage: gpu_bench [--ops LIST] [--formats LIST] [--shapes LIST] [--rows LIST] [--json FILE]
//                  [--kernels LIST] [--batch-invariant on|off] [--driver TEXT] [--commit TEXT]
//
// Lists are separated by commas and narrow what is measured: ops matmul, dequantize, norm_quant,
// silu_mul_quant; formats int4, int4_zp, nf4, fp8, fp8_block, and, with E4M3
// activations or BF16 ones that are quantized, fp8_w8a8, fp8_block_w8a8, fp8_w8a8_dynamic,
// fp8_block_w8a8_dynamic; int4_g32, int4_g32_zp, int4_g64 and int4_g64_zp, whose matmuls are only
// measured where named; rows of the matmuls. Shapes are any NxK.
// Matmuls run on the kernel that the selector picks, or with --kernels on each of these that can.
//
// A matmul and cuBLAS BF16 are timed together: a graph of each with equally many launches, replayed
// in turn. An H200 whose tensor cores are busy for some milliseconds lowers its clocks: cuBLAS's
// own rate at 28672x4096 and 4096 rows is 795 TFLOP/s in graphs of 2 launches and 667 in those
// of 42. A ratio of times taken apart is one of clocks.
//
// Answers of up to 512 rows are compared with the binary32 kernel's: in binary32 before a matmul is
// timed, in BF16 after the replays. Of a wrong one WRONG is printed and no time; the run goes on
// and ends with exit code 1. share_of_limit is max(bytes / bandwidth, FLOP / 790e12) over the time;
// the bandwidth is that of reading for a matmul, of a copy (bytes read and written) for the others.
// batch_invariant: the first row of y has the bits that it had at the first of the rows measured.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/device.h"
#include "nlohmann/json.hpp"
#include "tests/bench/bench_main.h"
#include "tests/bench/gpu_measurements.h"
#include "tests/bench/gpu_timing.h"

namespace nibble::bench {
namespace {

// cuBLAS as others use it: free to split K.
constexpr cuda::BlasOptions kCublas{uint64_t{32} << 20, true};

struct Options {
  std::string ops;
  std::string formats;
  std::string shapes;
  std::string rows;
  std::string kernels;
  std::string batch_invariant;
  std::string json;
  std::string driver;
  std::string commit;
};

WeightSpec SpecOf(Format format, int64_t n, int64_t k) {
  WeightSpec spec;
  spec.format = format;
  spec.n = n;
  spec.k = k;
  spec.scale_dtype = format == Format::kInt4 ? DType::kBF16 : DType::kF32;
  spec.nested = format == Format::kNF4;
  if (format == Format::kFP8) spec.scale_layout = ScaleLayout::kChannel;
  return spec;
}

// Whether a list names `item`; an empty one names all.
bool Names(const std::string& list, std::string_view item) {
  return list.empty() || ("," + list + ",").find(fmt::format(",{},", item)) != std::string::npos;
}

struct NamedCase {
  std::string_view name;
  MatmulCase matmul;
};

// Weights with BF16 activations, each once, then FP8 ones with quantized activations.
std::vector<NamedCase> WeightsOf(int64_t n, int64_t k) {
  std::vector<NamedCase> cases = {{"int4", {SpecOf(Format::kInt4, n, k)}},
                                  {"int4_zp", {SpecOf(Format::kInt4, n, k)}},
                                  {"nf4", {SpecOf(Format::kNF4, n, k)}},
                                  {"fp8", {SpecOf(Format::kFP8, n, k)}},
                                  {"fp8_block", {SpecOf(Format::kFP8, n, k)}}};
  cases[1].matmul.spec.has_zero_points = true;
  cases[4].matmul.spec.scale_layout = ScaleLayout::kBlock;
  return cases;
}
std::vector<NamedCase> CasesOf(int64_t n, int64_t k) {
  std::vector<NamedCase> cases = WeightsOf(n, k);
  const WeightSpec channel = cases[3].matmul.spec;
  const WeightSpec block = cases[4].matmul.spec;
  cases.push_back({"fp8_w8a8", {channel, DType::kF8E4M3, QuantMode::kPerToken}});
  cases.push_back({"fp8_block_w8a8", {block, DType::kF8E4M3, QuantMode::kPerGroup}});
  cases.push_back({"fp8_w8a8_dynamic", {channel, DType::kBF16, QuantMode::kPerToken}});
  cases.push_back({"fp8_block_w8a8_dynamic", {block, DType::kBF16, QuantMode::kPerGroup}});
  return cases;
}

// INT4 of smaller groups, measured only where named.
std::vector<NamedCase> SmallGroupsOf(int64_t n, int64_t k) {
  std::vector<NamedCase> cases;
  for (const auto& [name, group, zero_points] :
       {std::tuple("int4_g32", 32, false), std::tuple("int4_g32_zp", 32, true),
        std::tuple("int4_g64", 64, false), std::tuple("int4_g64_zp", 64, true)}) {
    WeightSpec spec = SpecOf(Format::kInt4, n, k);
    spec.group_size = group;
    spec.has_zero_points = zero_points;
    cases.push_back({name, {spec}});
  }
  return cases;
}

// N and K of those measured: the shapes of --shapes, or these.
std::vector<std::pair<int64_t, int64_t>> ShapesOf(const std::string& list) {
  std::vector<std::pair<int64_t, int64_t>> shapes;
  std::istringstream stream(list.empty() ? "4096x4096,6144x4096,28672x4096,4096x14336,57344x8192,"
                                           "8192x28672"
                                         : list);
  int64_t n = 0;
  int64_t k = 0;
  char separator = 0;
  while (stream >> n >> separator >> k) {
    shapes.emplace_back(n, k);
    stream >> separator;
  }
  return shapes;
}

Status RunMatmuls(Bench& bench, const Options& options) {
  std::vector<int64_t> rows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096};
  std::erase_if(rows, [&](int64_t m) { return !Names(options.rows, fmt::format("{}", m)); });
  if (rows.empty()) return absl::OkStatus();
  for (const auto& [n, k] : ShapesOf(options.shapes)) {
    std::vector<MatmulCase> cases;
    for (const NamedCase& named : CasesOf(n, k)) {
      if (Names(options.formats, named.name)) cases.push_back(named.matmul);
    }
    for (const NamedCase& named : SmallGroupsOf(n, k)) {
      if (!options.formats.empty() && Names(options.formats, named.name)) {
        cases.push_back(named.matmul);
      }
    }
    if (!cases.empty()) NIBBLE_RETURN_IF_ERROR(bench.Matmuls(cases, rows));
  }
  return absl::OkStatus();
}

Status RunAll(Bench& bench, const Options& options) {
  if (Names(options.ops, "matmul")) NIBBLE_RETURN_IF_ERROR(RunMatmuls(bench, options));
  if (Names(options.ops, "dequantize")) {
    NIBBLE_RETURN_IF_ERROR(bench.Dequantize(SpecOf(Format::kNF4, 4096, 4096)));
    for (const NamedCase& named : WeightsOf(16384, 16384)) {
      if (Names(options.formats, named.name)) {
        NIBBLE_RETURN_IF_ERROR(bench.Dequantize(named.matmul.spec));
      }
    }
  }
  for (const Op op : {Op::kNormQuant, Op::kSiluMulQuant}) {
    if (!Names(options.ops, OpName(op))) continue;
    const std::vector<int64_t> widths = op == Op::kNormQuant
                                            ? std::vector<int64_t>{4096, 8192}
                                            : std::vector<int64_t>{4096, 8192, 14336};
    for (const int64_t m : {1, 128, 8192}) {
      for (const int64_t d : widths) NIBBLE_RETURN_IF_ERROR(bench.RowOp(op, m, d));
    }
  }
  return absl::OkStatus();
}

Status Main(const Options& options) {
  const bool invariant = options.batch_invariant == "on";
  if (!invariant && !options.batch_invariant.empty() && options.batch_invariant != "off") {
    return absl::InvalidArgumentError(
        fmt::format("--batch-invariant: expected on or off, received {}", options.batch_invariant));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, cuda::CudaDevice::Create(0));
  if (invariant) device->SetBatchInvariant();
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream());
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<cuda::Blas> blas, cuda::OpenBlas(kCublas));
  const double read_tbs = device->info().peak_bandwidth_bytes_per_second * 1e-12;
  NIBBLE_ASSIGN_OR_RETURN(const double copy_tbs,
                          MeasureCopyTbs(static_cast<cuda::CudaStream&>(*stream).handle()));
  std::vector<std::string_view> kernels = KernelNames(BackendKind::kCuda, Op::kMatmul);
  std::erase_if(kernels, [&](std::string_view name) {
    return options.kernels.empty() || !Names(options.kernels, name);
  });
  Bench bench(*device, *stream, *blas, copy_tbs * 1e12, kernels);
  fmt::print("{}: read {:.2f} TB/s, copy {:.2f} TB/s\n", device->info().name, read_tbs, copy_tbs);
  const Status run = RunAll(bench, options);
  if (!options.json.empty()) {
    const nlohmann::json report = {{"gpu", device->info().name}, {"driver", options.driver},
                                   {"commit", options.commit},   {"read_tbs", read_tbs},
                                   {"copy_tbs", copy_tbs},       {"rows", bench.rows()}};
    std::ofstream(options.json) << report.dump(1) << "\n";
  }
  return run.ok() ? bench.wrong() : run;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  nibble::bench::Options options;
  return nibble::bench::BenchMain(
      argc, argv,
      {{"--json", &options.json},
       {"--ops", &options.ops},
       {"--formats", &options.formats},
       {"--shapes", &options.shapes},
       {"--rows", &options.rows},
       {"--kernels", &options.kernels},
       {"--batch-invariant", &options.batch_invariant},
       {"--driver", &options.driver},
       {"--commit", &options.commit}},
      "gpu_bench [--ops LIST] [--formats LIST] [--shapes LIST] [--rows LIST] [--kernels LIST] "
      "[--batch-invariant on|off] [--json FILE] [--driver TEXT] [--commit TEXT]",
      [&] { return nibble::bench::Main(options); });
}
