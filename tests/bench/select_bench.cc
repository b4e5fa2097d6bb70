// How good the selector's choices are: times every kernel that can run a matmul, and compares the
// one that the built-in table chooses, and the one that autotuning chooses, with the fastest.
//
// usage: select_bench [--backend cpu|cuda] [--formats LIST] [--shapes LIST] [--rows LIST]
//                     [--layers COUNT] [--budget-ms MS] [--samples COUNT]
//
// Lists are separated by commas: formats as in nibbled's --quantize (nf4+nested,int4+group=64,fp8),
// with "/per-token" or "/per-group" after them for quantized activations; shapes NxK. The weights
// of a shape are COUNT copies that launches take turns on. Tuning is what a server does with
// --autotune; the times that choices are judged by come from a run of their own after it, each the
// least of as many samples as are asked for, the kernels taking turns. The last lines are the
// largest ratios.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "fmt/format.h"
#include "nibble/backend.h"
#include "nibble/cuda_module.h"
#include "nibble/measured.h"
#include "nibble/quantize.h"
#include "server/autotune/matmul_timer.h"
#include "server/autotune/tuning.h"
#include "server/weight_store/weight_store.h"
#include "tests/bench/bench_data.h"
#include "tests/bench/bench_main.h"

namespace nibble::bench {
namespace {

struct Options {
  std::string backend = "cpu";
  std::string formats = "int4,nf4+nested,fp8+channel";
  std::string shapes = "2048x2048,2048x8192";
  std::string rows = "1,2,3,4,5,6,7,8,9,12,16,24,32,48,64";
  std::string layers = "4";
  std::string budget_ms = "20000";
  std::string samples = "15";
};

// Nobody else uses the device.
class OpenGate final : public server::QuietGate {
 public:
  bool Await() override { return true; }
  bool Disturbed() override { return false; }
};

struct Worst {
  double ratio = 1.0;
  std::string where = "none";

  void Add(double other, const std::string& cell) {
    if (other <= ratio) return;
    ratio = other;
    where = cell;
  }
};

std::vector<int64_t> Numbers(const std::string& list) {
  std::vector<int64_t> numbers;
  for (const auto& item : absl::StrSplit(list, ',')) {
    if (int64_t number = 0; absl::SimpleAtoi(item, &number)) numbers.push_back(number);
  }
  return numbers;
}

class SelectBench {
 public:
  SelectBench(Device& device, const Options& options)
      : device_(device),
        layers_(std::atoi(options.layers.c_str())),
        samples_(std::max(1, std::atoi(options.samples.c_str()))),
        ms_(Numbers(options.rows)) {
    limits_.budget = std::chrono::milliseconds(std::atoi(options.budget_ms.c_str()));
    limits_.longest_launch = std::chrono::seconds(2);
    limits_.memory_bytes = device.memory().total_bytes / 8;
    limits_.max_rows = ms_.empty() ? 1 : *std::ranges::max_element(ms_);
  }

  Status Run(const std::string& name, const MatmulKey& key) {
    server::WeightStore store({&device_}, nullptr);
    const CanonicalWeight weight = RandomWeight(key.weight);
    for (int layer = 0; layer < layers_; ++layer) {
      const std::string layer_name = fmt::format("layer.{}", layer);
      NIBBLE_ASSIGN_OR_RETURN(const auto load,
                              store.Begin(layer_name, {{layer_name, key.weight}}, ""));
      NIBBLE_RETURN_IF_ERROR(load->Add(layer_name, weight));
      NIBBLE_RETURN_IF_ERROR(load->Commit());
    }
    server::ServedWeights weights(store, 0, key.weight);
    OpenGate gate;
    const server::Tuning tuning = server::Tune(device_, key, weights, gate, *clock_, limits_);
    NIBBLE_RETURN_IF_ERROR(tuning.fault);
    MeasuredTable table;
    table.Set(key, MakeMeasured(key, device_.info(), tuning.rows));
    fmt::print("{} {}x{}: tuned in {:.0f} ms ({})\n", name, key.weight.n, key.weight.k,
               std::chrono::duration<double, std::milli>(tuning.spent).count(),
               server::TuningEndName(tuning.end));
    NIBBLE_ASSIGN_OR_RETURN(const auto timer,
                            server::MatmulTimer::Create(device_, key, limits_.memory_bytes));
    for (const int64_t m : ms_) NIBBLE_RETURN_IF_ERROR(Judge(name, key, m, table, weights, *timer));
    return absl::OkStatus();
  }

  void PrintWorst() const {
    fmt::print("largest ratio of the built-in table: {:.3f} ({})\n", built_in_.ratio,
               built_in_.where);
    fmt::print("largest ratio of autotuning:         {:.3f} ({})\n", tuned_.ratio, tuned_.where);
  }

 private:
  Status Judge(const std::string& name, const MatmulKey& key, int64_t m, const MeasuredTable& table,
               server::ServedWeights& weights, server::MatmulTimer& timer) {
    const Problem problem = ProblemOf(key, m);
    const std::vector<Choice> candidates = MatmulCandidates(problem, device_.info());
    std::vector<std::vector<double>> samples_us(candidates.size());
    for (int sample = -1; sample < samples_; ++sample) {
      for (size_t i = 0; i < candidates.size(); ++i) {
        constexpr double kSampleUs = 2000.0;
        constexpr double kMostLaunches = 64.0;
        const int launches = sample <= 0 || samples_us[i].empty()
                                 ? 1
                                 : static_cast<int>(std::clamp(kSampleUs / samples_us[i].front(),
                                                               1.0, kMostLaunches));
        const std::vector<server::WeightHandle> held = weights.Hold();
        const absl::StatusOr<double> us = timer.Time(candidates[i], m, held, launches);
        NIBBLE_RETURN_IF_ERROR(device_.health());
        if (us.ok() && sample >= 0) samples_us[i].push_back(*us);
      }
    }
    const auto time_us = [&](const Choice& choice) {
      const auto i = static_cast<size_t>(
          std::ranges::find(candidates, choice.kernel, &Choice::kernel) - candidates.begin());
      if (i == candidates.size() || samples_us[i].empty()) return 0.0;
      return std::ranges::min(samples_us[i]);
    };
    Choice best = candidates.front();
    for (const Choice& choice : candidates) {
      if (time_us(choice) > 0.0 && (time_us(best) <= 0.0 || time_us(choice) < time_us(best))) {
        best = choice;
      }
    }
    const Choice built_in = Select(problem, device_.info());
    const Choice tuned = Select(problem, device_.info(), &table);
    const std::string cell = fmt::format("{} {}x{} M={}", name, key.weight.n, key.weight.k, m);
    const double built_in_ratio = time_us(built_in) / time_us(best);
    const double tuned_ratio = time_us(tuned) / time_us(best);
    built_in_.Add(built_in_ratio, cell);
    tuned_.Add(tuned_ratio, cell);
    fmt::print("{:40} best {:16} {:10.2f} us  table {:16} {:.3f}  tuned {:16} {:.3f}\n", cell,
               best.kernel, time_us(best), built_in.kernel, built_in_ratio, tuned.kernel,
               tuned_ratio);
    std::fflush(stdout);
    return absl::OkStatus();
  }

  Device& device_;
  const int layers_;
  const int samples_;
  const std::vector<int64_t> ms_;
  server::TuningLimits limits_;
  const std::unique_ptr<server::Clock> clock_ = server::CreateRealClock();
  Worst built_in_;
  Worst tuned_;
};

StatusOr<MatmulKey> KeyFor(std::string_view text, int64_t n, int64_t k) {
  MatmulKey key;
  const size_t slash = text.find('/');
  if (slash != std::string_view::npos) {
    key.activation =
        text.substr(slash) == "/per-group" ? QuantMode::kPerGroup : QuantMode::kPerToken;
  }
  NIBBLE_ASSIGN_OR_RETURN(const QuantizeTarget target, ParseQuantizeTarget(text.substr(0, slash)));
  key.weight = SpecFor(target, n, k, DType::kBF16);
  return key;
}

Status Main(const Options& options) {
  auto devices = options.backend == "cuda" ? OpenCudaDevices() : CreateCpuDevices(CpuOptions{});
  NIBBLE_RETURN_IF_ERROR(devices.status());
  Device& device = *devices->front();
  fmt::print("{}: {}\n", device.info().id, device.info().name);
  SelectBench bench(device, options);
  for (const auto& shape : absl::StrSplit(options.shapes, ',')) {
    const std::vector<std::string> sizes = absl::StrSplit(shape, 'x');
    int64_t n = 0;
    int64_t k = 0;
    if (sizes.size() != 2 || !absl::SimpleAtoi(sizes[0], &n) || !absl::SimpleAtoi(sizes[1], &k)) {
      return absl::InvalidArgumentError(
          fmt::format("--shapes: expected NxK; received {}", options.shapes));
    }
    const std::vector<std::string> formats = absl::StrSplit(options.formats, ',');
    for (const std::string& format : formats) {
      NIBBLE_ASSIGN_OR_RETURN(const MatmulKey key, KeyFor(format, n, k));
      NIBBLE_RETURN_IF_ERROR(bench.Run(format, key));
    }
  }
  bench.PrintWorst();
  return absl::OkStatus();
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  nibble::bench::Options options;
  return nibble::bench::BenchMain(
      argc, argv,
      {{"--backend", &options.backend},
       {"--formats", &options.formats},
       {"--shapes", &options.shapes},
       {"--rows", &options.rows},
       {"--layers", &options.layers},
       {"--budget-ms", &options.budget_ms},
       {"--samples", &options.samples}},
      "select_bench [--backend cpu|cuda] [--formats LIST] [--shapes LIST] [--rows LIST] "
      "[--layers COUNT] [--budget-ms MS] [--samples COUNT]",
      [&] { return nibble::bench::Main(options); });
}
