// Which kernel runs a problem: a pure function of the problem and the device, printable, tested
// without the device.
#ifndef NIBBLE_SELECTOR_H_
#define NIBBLE_SELECTOR_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/format.h"
#include "nibble/ops.h"

namespace nibble {

enum class BackendKind : uint8_t { kCpu, kCuda };

struct DeviceInfo {
  std::string id;      // "cpu:0", "cuda:1": how flags, replies and metrics name it
  std::string name;    // the processor or GPU
  std::string driver;  // CUDA: the versions of driver and runtime. CPU: empty
  BackendKind kind = BackendKind::kCpu;
  int cores = 1;                               // CPU: worker threads. CUDA: SMs
  int compute_capability = 0;                  // CUDA: 10 * major + minor. CPU: 0
  uint64_t memory_bytes = 0;                   // memory this device may use in all
  double peak_bandwidth_bytes_per_second = 0;  // read bandwidth measured at start
  // CUDA: operations a second of a large BF16 matmul, measured at start; a product and its sum are
  // two. CPU: 0.
  double peak_tensor_flops_per_second = 0;
  // Largest inputs and outputs of a launch, in bytes, that kernels had better read and write in
  // staging memory than have copied.
  uint64_t zero_copy_input_bytes = 0;
  uint64_t zero_copy_output_bytes = 0;
  int batches_in_flight = 1;  // batches worth keeping in flight at once
  // Matmuls keep to kernels by which a row's bits depend neither on the other rows nor on how many
  // there are (Device::SetBatchInvariant).
  bool batch_invariant = false;
};

// One launch. For kDequantize m is the number of weight rows decoded; for kNormQuant and
// kSiluMulQuant n is the number of output columns d, and k is 0.
struct Problem {
  Op op = Op::kMatmul;
  WeightSpec weight;  // kMatmul and kDequantize; n and k are read from here
  int64_t m = 0;
  int64_t d = 0;  // kNormQuant, kSiluMulQuant: output columns
  DType input = DType::kBF16;
  DType output = DType::kBF16;
  QuantMode quant =
      QuantMode::kNone;       // activation quantization of kMatmul, output quantization of others
  bool has_residual = false;  // kNormQuant
};

// `kernel` names the family and is a string literal: it is a metric label, so there are few.
struct Choice {
  std::string_view kernel;
  int tile_m = 0;  // rows a tile holds
  int tile_n = 0;  // outputs a tile holds; 0 where a tile is whole rows
  int tile_k = 0;  // inputs a pipeline step holds; 0 where the whole K is one
  int split_k = 1;

  bool operator==(const Choice&) const = default;
};

Choice Select(const Problem& problem, const DeviceInfo& device);

// Whether Select takes the kernel with the least predicted time for matmuls of this device: a GPU
// whose peaks are known, and are not those of the chip that the built-in table was measured on.
bool SelectsByRoofline(const DeviceInfo& device);

// What a matmul can run with on the device: every kernel of the device's table that fits the
// problem, once, with the tile that the table gives it for these rows. Select's own comes first;
// where the device is batch_invariant it is the only one. Crossovers, which are there for speed
// alone, do not count. Empty for other ops.
std::vector<Choice> MatmulCandidates(const Problem& problem, const DeviceInfo& device);

// Time of the problem by `kernel` in microseconds. A matmul on CUDA: by the rooflines of memory and
// of the tensor cores, with what is known of the kernel (core/roofline.h); a choice is made by it
// where the table was not measured on such a chip. Anything else, and where no peak of the tensor
// cores is known: the bytes of TrafficOf over the read bandwidth, a lower bound. 0 where the
// bandwidth is not known, or there are no rows.
double PredictMicroseconds(const Problem& problem, std::string_view kernel,
                           const DeviceInfo& device);

// Every name that Select can return in Choice::kernel for `kind` and `op`; metric handles are made
// from it.
std::vector<std::string_view> KernelNames(BackendKind kind, Op op);

// "cpu_gemv tile 1x4xK split 1".
std::string ToString(const Choice& choice);

// The choices for M = 1..max_m of one weight as intervals, in order: what `nibble explain` prints.
struct ChoiceRange {
  int64_t m_begin = 0;
  int64_t m_end = 0;  // inclusive
  Choice choice;
  bool measured = false;  // decided by measurements (measured.h), not by the built-in table
};
std::vector<ChoiceRange> ExplainMatmul(const WeightSpec& weight, DType input, DType output,
                                       QuantMode activation, const DeviceInfo& device,
                                       int64_t max_m);

// Bytes that the problem must at least move: every input read once, every output written once.
struct Traffic {
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
};
Traffic TrafficOf(const Problem& problem);

}  // namespace nibble

#endif  // NIBBLE_SELECTOR_H_
