#include "client/cpp/cli/bench.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <ostream>
#include <random>
#include <thread>

#include "client/cpp/cli/execution_info.h"
#include "client/cpp/cli/table.h"
#include "fmt/format.h"

namespace nibble::cli {
namespace {

using Clock = std::chrono::steady_clock;

absl::StatusOr<v1::MatmulRequest> MakeRequest(const BenchOptions& bench, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(bench.rows * bench.k));
  for (float& value : x) value = normal(random);
  absl::StatusOr<v1::Tensor> tensor =
      client::TensorFromFloats(x, {bench.rows, bench.k}, bench.dtype);
  if (!tensor.ok()) return tensor.status();
  v1::MatmulRequest request;
  request.set_weight(bench.weight);
  request.set_output_dtype(bench.output_dtype);
  request.set_activation_quant(bench.activation_quant);
  *request.mutable_x() = *std::move(tensor);
  return request;
}

// What the callers share.
struct Shared {
  explicit Shared(const BenchOptions& options)
      : bench(options), ready(options.concurrency), start(1), requests_left(options.requests) {}
  const BenchOptions& bench;
  std::latch ready;  // counted down by each caller after its first call
  std::latch start;
  Clock::time_point end{};  // set before `start`
  std::atomic<int64_t> requests_left;
  std::atomic<int64_t> calls{0};
  std::atomic<int64_t> failed{0};

  bool TakeTurn() {
    if (bench.requests > 0) return requests_left.fetch_sub(1) > 0;
    return Clock::now() < end;
  }
};

struct Caller {
  std::unique_ptr<client::Client> client;
  v1::MatmulRequest request;
  absl::Status first;
  BenchResult result;

  void Run(Shared& shared) {
    first = client->Matmul(request).status();
    shared.ready.count_down();
    shared.start.wait();
    while (shared.TakeTurn()) {
      const Stopwatch watch;
      const auto reply = client->Matmul(request);
      const int64_t micros = watch.ElapsedMicros();
      if (reply.ok()) {
        ++shared.calls;
        result.latencies_us.push_back(static_cast<uint32_t>(std::min<int64_t>(micros, UINT32_MAX)));
        result.queue_us += static_cast<double>(reply->info().queue_us());
        result.compute_us += static_cast<double>(reply->info().compute_us());
        result.batch_rows += static_cast<double>(reply->info().batch_rows());
        ++result.kernels[reply->info().kernel()];
      } else {
        ++shared.failed;
        ++result.errors[absl::StatusCodeToString(reply.status().code())];
        // A server that refuses at once would otherwise be asked in a tight loop.
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  }
};

// Prints the rate so far, once a second, until stopped.
void ShowProgress(const std::stop_token& stop, const Shared& shared, const Io& io) {
  const Stopwatch watch;
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  while (
      !wake.wait_for(lock, stop, std::chrono::seconds(1), [&] { return stop.stop_requested(); })) {
    const double seconds = static_cast<double>(watch.ElapsedMicros()) / 1e6;
    io.err << fmt::format("\r\033[K{:.0f} s  {} calls  {:.0f} calls/s  {} failed", seconds,
                          shared.calls.load(), static_cast<double>(shared.calls.load()) / seconds,
                          shared.failed.load())
           << std::flush;
  }
  io.err << "\r\033[K" << std::flush;
}

void Merge(const BenchResult& from, BenchResult& into) {
  into.latencies_us.insert(into.latencies_us.end(), from.latencies_us.begin(),
                           from.latencies_us.end());
  into.queue_us += from.queue_us;
  into.compute_us += from.compute_us;
  into.batch_rows += from.batch_rows;
  for (const auto& [kernel, count] : from.kernels) into.kernels[kernel] += count;
  for (const auto& [code, count] : from.errors) into.errors[code] += count;
}

std::string Counts(const std::map<std::string, int64_t>& counts) {
  std::string text;
  for (const auto& [name, count] : counts) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", name, count);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

uint32_t BenchResult::Percentile(double share) const {
  if (latencies_us.empty()) return 0;
  const auto rank =
      static_cast<size_t>(std::ceil(share * static_cast<double>(latencies_us.size())));
  return latencies_us[std::clamp<size_t>(rank, 1, latencies_us.size()) - 1];
}

std::string BenchResult::Text() const {
  const auto count = static_cast<double>(std::max<int64_t>(calls(), 1));
  const auto latency = [&](double share) { return FormatMicros(Percentile(share)); };
  return FormatPairs(
      {{"calls", fmt::format("{} in {:.2f} s", calls(), seconds)},
       {"calls/s", fmt::format("{:.1f}", static_cast<double>(calls()) / seconds)},
       {"rows/s", fmt::format("{:.1f}", static_cast<double>(calls() * rows_per_call) / seconds)},
       {"latency", fmt::format("p50 {}  p90 {}  p99 {}  max {}", latency(0.5), latency(0.9),
                               latency(0.99), latency(1.0))},
       {"mean queue", FormatMicros(queue_us / count)},
       {"mean compute", FormatMicros(compute_us / count)},
       {"mean batch rows", fmt::format("{:.1f}", batch_rows / count)},
       {"kernels", Counts(kernels)},
       {"errors", Counts(errors)}});
}

Json BenchResult::ToJson() const {
  const auto count = static_cast<double>(std::max<int64_t>(calls(), 1));
  return {{"seconds", seconds},
          {"calls", calls()},
          {"calls_per_s", static_cast<double>(calls()) / seconds},
          {"rows_per_s", static_cast<double>(calls() * rows_per_call) / seconds},
          {"latency_us",
           {{"p50", Percentile(0.5)},
            {"p90", Percentile(0.9)},
            {"p99", Percentile(0.99)},
            {"max", Percentile(1.0)}}},
          {"mean_queue_us", queue_us / count},
          {"mean_compute_us", compute_us / count},
          {"mean_batch_rows", batch_rows / count},
          {"kernels", kernels},
          {"errors", errors}};
}

absl::StatusOr<BenchResult> RunBench(const BenchOptions& bench,
                                     const client::ClientOptions& connection, const Io& io) {
  Shared shared(bench);
  client::ClientOptions options = connection;
  options.retry.max_attempts = 1;  // an attempt that fails is a result here
  std::vector<Caller> callers(static_cast<size_t>(bench.concurrency));
  for (size_t i = 0; i < callers.size(); ++i) {
    auto client = client::Client::Create(options);
    if (!client.ok()) return client.status();
    callers[i].client = *std::move(client);
    auto request = MakeRequest(bench, static_cast<uint32_t>(i + 1));
    if (!request.ok()) return request.status();
    callers[i].request = *std::move(request);
  }
  std::vector<std::jthread> threads;
  for (Caller& caller : callers) threads.emplace_back([&] { caller.Run(shared); });
  shared.ready.wait();
  const bool usable = std::any_of(callers.begin(), callers.end(),
                                  [](const Caller& caller) { return caller.first.ok(); });
  const Clock::time_point begin = Clock::now();
  if (usable) {
    shared.end = begin + std::chrono::duration_cast<Clock::duration>(
                             std::chrono::duration<double>(bench.seconds));
  } else {
    shared.requests_left = 0;
  }
  std::jthread progress;
  if (usable && io.err_is_terminal) {
    progress = std::jthread([&](const std::stop_token& stop) { ShowProgress(stop, shared, io); });
  }
  shared.start.count_down();
  threads.clear();  // joins
  if (!usable) return callers.front().first;
  BenchResult result;
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  progress = {};
  result.rows_per_call = bench.rows;
  for (const Caller& caller : callers) Merge(caller.result, result);
  std::sort(result.latencies_us.begin(), result.latencies_us.end());
  return result;
}

}  // namespace nibble::cli
