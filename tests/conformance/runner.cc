#include "tests/conformance/runner.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "gtest/gtest.h"

namespace nibble::conformance {
namespace {

constexpr std::byte kPoison{0xFF};  // NaN in every float type
constexpr std::byte kCanary{0xA7};
constexpr int64_t kCanaryRows = 2;
constexpr size_t kWorkspaceCanaryBytes = 256;

DType OutputDType(const OutputQuant& quant, DType computed, DType quantized) {
  return quant.mode == QuantMode::kNone ? computed : quantized;
}

int64_t ScaleColumns(const OutputQuant& quant, int64_t cols) {
  return quant.mode == QuantMode::kStatic ? 0 : ScalesPerRow(quant.mode, cols);
}

}  // namespace

Runner::Runner(Device& device) : device_(device) {
  auto stream = device.CreateStream();
  EXPECT_TRUE(stream.ok()) << stream.status();
  if (stream.ok()) stream_ = std::move(stream).value();
  if (const char* kernel = std::getenv("NIBBLE_TEST_KERNEL"); kernel != nullptr) kernel_ = kernel;
}

std::unique_ptr<DeviceWeight> Runner::Upload(const CanonicalWeight& weight) {
  auto uploaded = device_.Upload(weight, nullptr);
  EXPECT_TRUE(uploaded.ok()) << uploaded.status();
  return uploaded.ok() ? std::move(uploaded).value() : nullptr;
}

std::vector<std::byte> Runner::StridedBytes(const HostMatrix& matrix) const {
  const size_t row_bytes = static_cast<size_t>(matrix.cols) * DTypeBytes(matrix.dtype);
  const size_t stride = row_bytes + static_cast<size_t>(row_padding_) * DTypeBytes(matrix.dtype);
  std::vector<std::byte> bytes(stride * static_cast<size_t>(matrix.rows), kPoison);
  for (size_t row = 0; row < static_cast<size_t>(matrix.rows); ++row) {
    std::copy_n(matrix.bytes.data() + row * row_bytes, row_bytes, bytes.data() + row * stride);
  }
  return bytes;
}

std::byte* Runner::Staging(size_t bytes) {
  if (staging_ == nullptr || staging_->size() < bytes) {
    staging_.reset();
    auto larger = device_.Allocate(std::max<size_t>(2 * bytes, 1 << 16), MemoryKind::kStaging);
    EXPECT_TRUE(larger.ok()) << larger.status();
    if (!larger.ok()) return nullptr;
    staging_ = *std::move(larger);
  }
  return static_cast<std::byte*>(staging_->data());
}

std::unique_ptr<Buffer> Runner::PutBytes(const std::vector<std::byte>& bytes) {
  std::byte* staging = Staging(bytes.size());
  auto buffer = device_.Allocate(bytes.size(), MemoryKind::kDevice);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  if (staging == nullptr || !buffer.ok()) return nullptr;
  std::copy(bytes.begin(), bytes.end(), staging);
  const Status copied = stream_->Copy((*buffer)->data(), staging, bytes.size());
  EXPECT_TRUE(copied.ok()) << copied;
  const Status done = stream_->Synchronize();
  EXPECT_TRUE(done.ok()) << done;
  return std::move(buffer).value();
}

std::vector<std::byte> Runner::GetBytes(const Buffer& buffer) {
  std::vector<std::byte> bytes(buffer.size());
  std::byte* staging = Staging(bytes.size());
  if (staging == nullptr) return bytes;
  const Status copied = stream_->Copy(staging, buffer.data(), bytes.size());
  EXPECT_TRUE(copied.ok()) << copied;
  const Status done = stream_->Synchronize();
  EXPECT_TRUE(done.ok()) << done;
  std::copy_n(staging, bytes.size(), bytes.data());
  return bytes;
}

Runner::Input Runner::Put(const HostMatrix& matrix) {
  Input input;
  if (matrix.rows == 0) {
    input.view = {nullptr, matrix.dtype, 0, matrix.cols, matrix.cols};
    return input;
  }
  input.buffer = PutBytes(StridedBytes(matrix));
  input.view = {input.buffer->data(), matrix.dtype, matrix.rows, matrix.cols,
                matrix.cols + row_padding_};
  return input;
}

HostMatrix Runner::Get(const Input& input) {
  HostMatrix matrix(input.view.dtype, input.view.rows, input.view.cols);
  const std::vector<std::byte> bytes = GetBytes(*input.buffer);
  std::copy_n(bytes.begin(), std::min(bytes.size(), matrix.bytes.size()), matrix.bytes.begin());
  return matrix;
}

Runner::Output Runner::MakeOutput(DType dtype, int64_t rows, int64_t cols,
                                  const HostMatrix* initial) {
  Output output;
  if (cols == 0) return output;
  const int64_t stride = cols + row_padding_;
  const auto element_bytes = static_cast<int64_t>(DTypeBytes(dtype));
  std::vector<std::byte> bytes(static_cast<size_t>((rows + kCanaryRows) * stride * element_bytes),
                               kCanary);
  for (int64_t row = 0; row < rows; ++row) {
    std::byte* to = bytes.data() + row * stride * element_bytes;
    if (initial != nullptr) {
      std::copy_n(initial->bytes.data() + row * cols * element_bytes, cols * element_bytes, to);
    } else {
      std::fill_n(to, cols * element_bytes, kPoison);
    }
  }
  output.buffer = PutBytes(bytes);
  output.view = {output.buffer->data(), dtype, rows, cols, stride};
  return output;
}

HostMatrix Runner::Take(const Output& output) {
  if (output.buffer == nullptr) return {};
  const MatrixView& view = output.view;
  HostMatrix matrix(view.dtype, view.rows, view.cols);
  const std::vector<std::byte> bytes = GetBytes(*output.buffer);
  const auto stride = static_cast<size_t>(view.row_stride_bytes());
  const size_t row_bytes = static_cast<size_t>(view.cols) * DTypeBytes(view.dtype);
  const auto rows = static_cast<size_t>(view.rows);
  int64_t overwritten = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const bool canary = i / stride >= rows || i % stride >= row_bytes;
    if (canary && bytes[i] != kCanary) ++overwritten;
  }
  EXPECT_EQ(overwritten, 0) << "bytes outside the output were written";
  for (size_t row = 0; row < rows; ++row) {
    std::copy_n(bytes.data() + row * stride, row_bytes, matrix.bytes.data() + row * row_bytes);
  }
  return matrix;
}

Choice Runner::ChoiceFor(const Problem& problem) const {
  DeviceInfo info = device_.info();
  info.batch_invariant = info.batch_invariant || batch_invariant_;
  for (const Choice& candidate : MatmulCandidates(problem, info)) {
    if (candidate.kernel == kernel_) return candidate;
  }
  return Select(problem, info);
}

template <class RunOp>
void Runner::Run(const Problem& problem, RunOp op) {
  const Choice choice = ChoiceFor(problem);
  const uint64_t needed = device_.WorkspaceBytes(problem, choice);
  std::vector<std::byte> dirty(needed + kWorkspaceCanaryBytes, kPoison);
  std::fill(dirty.end() - kWorkspaceCanaryBytes, dirty.end(), kCanary);
  const std::unique_ptr<Buffer> workspace = PutBytes(dirty);
  std::unique_ptr<Graph> graph;  // until it has run
  if (replay_) {
    const Status began = stream_->BeginCapture();
    EXPECT_TRUE(began.ok()) << began;
  }
  const Status status = op(choice, workspace->data());
  EXPECT_TRUE(status.ok()) << status;
  if (replay_) {
    auto recorded = stream_->EndCapture();
    EXPECT_TRUE(recorded.ok()) << recorded.status();
    if (!recorded.ok()) return;
    graph = *std::move(recorded);
    const Status launched = stream_->Launch(*graph);
    EXPECT_TRUE(launched.ok()) << launched;
  }
  const Status done = stream_->Synchronize();
  EXPECT_TRUE(done.ok()) << done;
  const std::vector<std::byte> after = GetBytes(*workspace);
  EXPECT_TRUE(std::all_of(after.end() - kWorkspaceCanaryBytes, after.end(), [](std::byte byte) {
    return byte == kCanary;
  })) << "bytes past WorkspaceBytes were written";
}

HostMatrix Runner::Matmul(const DeviceWeight& weight, const MatmulInput& input, DType output) {
  const Input x = Put(input.x);
  const Input scales = Put(input.x_scales);
  const Output y = MakeOutput(output, input.x.rows, weight.spec().n);
  MatmulArgs args;
  args.weight = &weight;
  args.x = x.view;
  args.x_scales = scales.view;
  if (input.repeat_scales) {
    args.x_scales.rows = input.x.rows;
    args.x_scales.row_stride = 0;
  }
  args.activation = input.activation;
  args.static_scale = input.static_scale;
  args.y = y.view;
  Problem problem;
  problem.op = Op::kMatmul;
  problem.weight = weight.spec();
  problem.m = input.x.rows;
  problem.input = input.x.dtype;
  problem.output = output;
  problem.quant = input.activation;
  Run(problem, [&](const Choice& choice, void* workspace) {
    return device_.Matmul(args, choice, workspace, *stream_);
  });
  return Take(y);
}

HostMatrix Runner::Dequantize(const DeviceWeight& weight, int64_t row_begin, int64_t rows,
                              DType output) {
  const Output out = MakeOutput(output, rows, weight.spec().k);
  Problem problem;
  problem.op = Op::kDequantize;
  problem.weight = weight.spec();
  problem.m = rows;
  problem.output = output;
  Run(problem, [&](const Choice& choice, void* workspace) {
    return device_.Dequantize({&weight, row_begin, out.view}, choice, workspace, *stream_);
  });
  return Take(out);
}

RowOpResult Runner::NormQuant(const NormInput& input) {
  const int64_t rows = input.x.rows;
  const int64_t d = input.x.cols;
  const Input x = Put(input.x);
  const Input gamma = Put(input.gamma);
  const Input residual = Put(input.residual);
  const Output y = MakeOutput(OutputDType(input.quant, input.x.dtype, input.quantized), rows, d);
  const Output scales = MakeOutput(DType::kF32, rows, ScaleColumns(input.quant, d));
  const Output residual_out = MakeOutput(input.x.dtype, rows, input.has_residual() ? d : 0,
                                         input.residual_in_place ? &input.residual : nullptr);
  NormQuantArgs args;
  args.x = x.view;
  args.residual = residual.view;
  args.gamma = gamma.view;
  args.epsilon = input.epsilon;
  args.quant = input.quant;
  args.y = y.view;
  args.scales = scales.view;
  args.residual_out = residual_out.view;
  if (input.residual_in_place) {
    const MatrixView& view = residual_out.view;
    args.residual = {view.data, view.dtype, view.rows, view.cols, view.row_stride};
  }
  Problem problem;
  problem.op = Op::kNormQuant;
  problem.m = rows;
  problem.d = d;
  problem.input = input.x.dtype;
  problem.output = y.view.dtype;
  problem.quant = input.quant.mode;
  problem.has_residual = input.has_residual();
  Run(problem, [&](const Choice& choice, void* workspace) {
    return device_.NormQuant(args, choice, workspace, *stream_);
  });
  return {Take(y), Take(scales), Take(residual_out)};
}

RowOpResult Runner::SiluMulQuant(const SiluMulInput& input) {
  const int64_t rows = input.x.rows;
  const int64_t d = input.x.cols / 2;
  const Input x = Put(input.x);
  const Output y = MakeOutput(OutputDType(input.quant, input.x.dtype, input.quantized), rows, d);
  const Output scales = MakeOutput(DType::kF32, rows, ScaleColumns(input.quant, d));
  Problem problem;
  problem.op = Op::kSiluMulQuant;
  problem.m = rows;
  problem.d = d;
  problem.input = input.x.dtype;
  problem.output = y.view.dtype;
  problem.quant = input.quant.mode;
  Run(problem, [&](const Choice& choice, void* workspace) {
    return device_.SiluMulQuant({x.view, input.quant, y.view, scales.view}, choice, workspace,
                                *stream_);
  });
  return {Take(y), Take(scales), {}};
}

}  // namespace nibble::conformance
