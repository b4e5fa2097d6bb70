// Runs ops on one device from host matrices: inputs are copied over, outputs start as NaN and are
// followed by canaries, workspaces start dirty. A status that is not OK fails the test.
#ifndef NIBBLE_TESTS_CONFORMANCE_RUNNER_H_
#define NIBBLE_TESTS_CONFORMANCE_RUNNER_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/backend.h"
#include "tests/conformance/random_data.h"

namespace nibble::conformance {

struct MatmulInput {
  HostMatrix x;
  QuantMode activation = QuantMode::kNone;
  float static_scale = 1.0f;
  HostMatrix x_scales = {};    // with an F8_E4M3 x
  bool repeat_scales = false;  // x_scales holds one row for all
};

struct NormInput {
  HostMatrix x;
  HostMatrix residual;  // no rows: none
  HostMatrix gamma;
  float epsilon = 1e-6f;
  OutputQuant quant = {};
  DType quantized = DType::kF8E4M3;
  bool residual_in_place = false;

  bool has_residual() const { return residual.rows > 0; }
};

struct SiluMulInput {
  HostMatrix x;
  OutputQuant quant = {};
  DType quantized = DType::kF8E4M3;
};

struct RowOpResult {
  HostMatrix y;
  HostMatrix scales;        // empty for kNone and kStatic
  HostMatrix residual_out;  // empty without a residual

  bool operator==(const RowOpResult&) const = default;
};

class Runner {
 public:
  explicit Runner(Device& device);

  Device& device() { return device_; }
  Stream& stream() { return *stream_; }
  // Elements between the end of a row and the next row, in inputs and outputs.
  void set_row_padding(int64_t elements) { row_padding_ = elements; }

  // Keeps to kernels by which a row's bits do not depend on how many rows there are.
  void set_batch_invariant(bool invariant) { batch_invariant_ = invariant; }

  // Matmuls run on this kernel wherever it can, instead of the selected one; empty: on that.
  // NIBBLE_TEST_KERNEL sets it for every test.
  void set_kernel(std::string_view kernel) { kernel_ = kernel; }

  // What Select chooses, or a candidate that set_kernel asks for.
  Choice ChoiceFor(const Problem& problem) const;

  // Records ops and replays them, instead of running them as they come.
  void set_replay(bool replay) { replay_ = replay; }

  std::unique_ptr<DeviceWeight> Upload(const CanonicalWeight& weight);
  HostMatrix Matmul(const DeviceWeight& weight, const MatmulInput& input, DType output);
  HostMatrix Dequantize(const DeviceWeight& weight, int64_t row_begin, int64_t rows, DType output);
  RowOpResult NormQuant(const NormInput& input);
  RowOpResult SiluMulQuant(const SiluMulInput& input);

  // Device memory with a copy of `matrix`.
  struct Input {
    std::unique_ptr<Buffer> buffer;
    ConstMatrixView view;
  };
  Input Put(const HostMatrix& matrix);
  // What it holds once all ops are done, of rows without padding.
  HostMatrix Get(const Input& input);

 private:
  struct Output {
    std::unique_ptr<Buffer> buffer;
    MatrixView view;
  };
  // A result with poisoned rows and canaries, or an in-place one that starts as `initial`.
  Output MakeOutput(DType dtype, int64_t rows, int64_t cols, const HostMatrix* initial = nullptr);
  HostMatrix Take(const Output& output);

  std::vector<std::byte> StridedBytes(const HostMatrix& matrix) const;
  std::unique_ptr<Buffer> PutBytes(const std::vector<std::byte>& bytes);
  std::vector<std::byte> GetBytes(const Buffer& buffer);
  // Host memory of at least so many bytes, kept for the next copy: pinning takes longer than most
  // ops. Null after a failure.
  std::byte* Staging(size_t bytes);

  // Runs `op(choice, workspace)` on a dirty workspace and checks the canary behind it.
  template <class RunOp>
  void Run(const Problem& problem, RunOp op);

  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Buffer> staging_;
  int64_t row_padding_ = 0;
  bool replay_ = false;
  bool batch_invariant_ = false;
  std::string kernel_;
};

}  // namespace nibble::conformance

#endif  // NIBBLE_TESTS_CONFORMANCE_RUNNER_H_
