// Quantizes a matrix to NF4 and multiplies with it on the CPU, through the installed headers alone.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "nibble/backend.h"
#include "nibble/ops.h"
#include "nibble/quantize.h"
#include "nibble/selector.h"
#include "nibble/weight.h"

namespace {

constexpr int64_t kM = 3, kN = 16, kK = 128;

nibble::StatusOr<double> WorstError() {
  std::vector<float> matrix(kN * kK), x(kM * kK), decoded(kN * kK);
  for (size_t i = 0; i < matrix.size(); ++i) matrix[i] = std::sin(0.37f * static_cast<float>(i));
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::cos(0.11f * static_cast<float>(i));

  nibble::WeightSpec target;
  target.format = nibble::Format::kNF4;
  NIBBLE_ASSIGN_OR_RETURN(
      const nibble::CanonicalWeight weight,
      nibble::Quantize(nibble::MakeConstView(matrix.data(), nibble::DType::kF32, kN, kK), target));
  NIBBLE_RETURN_IF_ERROR(nibble::DecodeReference(weight, 0, kN, decoded));

  NIBBLE_ASSIGN_OR_RETURN(auto devices,
                          nibble::CreateCpuDevices({.threads = 2, .measure_bandwidth = false}));
  nibble::Device& device = *devices.front();
  NIBBLE_ASSIGN_OR_RETURN(const auto resident, device.Upload(weight, nullptr));
  NIBBLE_ASSIGN_OR_RETURN(const auto stream, device.CreateStream());
  NIBBLE_ASSIGN_OR_RETURN(const auto input,
                          device.Allocate(x.size() * sizeof(float), nibble::MemoryKind::kStaging));
  NIBBLE_ASSIGN_OR_RETURN(const auto output,
                          device.Allocate(kM * kN * sizeof(float), nibble::MemoryKind::kStaging));
  std::memcpy(input->data(), x.data(), x.size() * sizeof(float));

  nibble::MatmulArgs args;
  args.weight = resident.get();
  args.x = nibble::MakeConstView(input->data(), nibble::DType::kF32, kM, kK);
  args.y = nibble::MakeView(output->data(), nibble::DType::kF32, kM, kN);
  nibble::Problem problem;
  problem.weight = resident->spec();
  problem.m = kM;
  problem.input = problem.output = nibble::DType::kF32;
  const nibble::Choice choice = nibble::Select(problem, device.info());
  NIBBLE_ASSIGN_OR_RETURN(
      const auto workspace,
      device.Allocate(std::max<uint64_t>(device.WorkspaceBytes(problem, choice), 1),
                      nibble::MemoryKind::kDevice));
  NIBBLE_RETURN_IF_ERROR(device.Matmul(args, choice, workspace->data(), *stream));
  NIBBLE_RETURN_IF_ERROR(stream->Synchronize());

  const auto* y = static_cast<const float*>(output->data());
  double worst = 0;
  for (int64_t m = 0; m < kM; ++m) {
    for (int64_t n = 0; n < kN; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < kK; ++k) {
        sum += static_cast<double>(x[m * kK + k]) * decoded[n * kK + k];
      }
      const double error = std::abs(sum - y[m * kN + n]);
      worst = std::isnan(error) ? HUGE_VAL : std::max(worst, error);
    }
  }
  std::printf("%s: worst error %.3g\n", nibble::ToString(choice).c_str(), worst);
  return worst;
}

}  // namespace

int main() {
  const auto worst = WorstError();
  if (!worst.ok()) {
    std::fprintf(stderr, "%s\n", worst.status().ToString().c_str());
    return 1;
  }
  // FP32 sums of 128 products of magnitude at most 1.
  return *worst < 1e-4 ? 0 : 1;
}
