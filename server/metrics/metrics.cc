#include "server/metrics/metrics.h"

#include <array>
#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "prometheus/exposer.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/metrics/families.h"
#include "server/metrics/process_metrics.h"
#include "server/metrics/traffic_window.h"

namespace nibble::server {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;
using prometheus::MetricFamily;

// The names of the gRPC status codes, in the order of their numbers.
constexpr std::array<const char*, 17> kCodeNames = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};
constexpr int kUnknownCode = 2;

constexpr int kServeThreads = 4;
// A connection that sends no whole request for so long is closed: it holds up a thread.
constexpr int kRequestTimeoutMs = 2000;

class RpcHandles final : public RpcMetrics {
 public:
  RpcHandles(Families& families, const std::string& method)
      : duration_(families.rpc_duration.Add({{"method", method}}, DurationBuckets())) {
    for (size_t code = 0; code < kCodeNames.size(); ++code) {
      requests_[code] =
          &families.rpc_requests.Add({{"method", method}, {"code", kCodeNames[code]}});
    }
  }

  void Finished(int code, double seconds) override {
    const bool known = code >= 0 && code < static_cast<int>(requests_.size());
    requests_[static_cast<size_t>(known ? code : kUnknownCode)]->Increment();
    duration_.Observe(seconds);
  }

 private:
  std::array<Counter*, kCodeNames.size()> requests_;
  Histogram& duration_;
};

class KernelHandles final : public KernelMetrics {
 public:
  KernelHandles(Families& families, const Labels& labels)
      : compute_(families.compute_duration.Add(labels, DurationBuckets())),
        batches_(families.batches.Add(labels)),
        read_(families.device_bytes.Add(WithDirection(labels, "read"))),
        written_(families.device_bytes.Add(WithDirection(labels, "written"))) {}

  void BatchDone(double compute_seconds, uint64_t read_bytes, uint64_t written_bytes) override {
    compute_.Observe(compute_seconds);
    batches_.Increment();
    read_.Increment(static_cast<double>(read_bytes));
    written_.Increment(static_cast<double>(written_bytes));
  }

 private:
  static Labels WithDirection(Labels labels, const char* direction) {
    labels["direction"] = direction;
    return labels;
  }

  Histogram& compute_;
  Counter& batches_;
  Counter& read_;
  Counter& written_;
};

class OpHandles final : public OpMetrics {
 public:
  OpHandles(Families& families, const std::string& op)
      : queue_(families.queue_duration.Add({{"op", op}}, DurationBuckets())),
        rows_(families.batch_rows.Add({{"op", op}}, RowBuckets())) {}

  void Queued(double seconds) override { queue_.Observe(seconds); }
  void BatchFormed(int64_t rows) override { rows_.Observe(static_cast<double>(rows)); }

 private:
  Histogram& queue_;
  Histogram& rows_;
};

class RejectionHandle final : public RejectionMetrics {
 public:
  RejectionHandle(Families& families, const std::string& reason)
      : rejected_(families.rejected.Add({{"reason", reason}})) {}

  void Rejected() override { rejected_.Increment(); }

 private:
  Counter& rejected_;
};

class DeviceHandles final : public DeviceMetrics {
 public:
  DeviceHandles(Families& families, std::string device)
      : families_(families),
        device_(std::move(device)),
        peak_(families.peak_bandwidth.Add({{"device", device_}})),
        queue_rows_(families.queue_rows.Add({{"device", device_}})) {}

  void SetPeakBandwidth(double bytes_per_second) override { peak_.Set(bytes_per_second); }
  void AddTraffic(uint64_t bytes, double seconds) override {
    traffic_.Add(std::chrono::steady_clock::now(), bytes, seconds);
  }
  void SetQueueRows(int64_t rows) override { queue_rows_.Set(static_cast<double>(rows)); }
  void SetMemory(std::string_view kind, int64_t bytes) override {
    Set(families_.device_memory, "kind", kind, bytes);
  }
  void SetResidentBytes(std::string_view format, int64_t bytes) override {
    Set(families_.resident_bytes, "format", format, bytes);
  }
  void SetWeights(std::string_view state, int64_t count) override {
    Set(families_.weights, "state", state, count);
  }

  // Achieved over peak bandwidth of the window; 0 when the device was idle or its peak is unknown.
  double BandwidthRatio() const {
    const double peak = peak_.Value();
    return peak > 0 ? traffic_.BytesPerSecond(std::chrono::steady_clock::now()) / peak : 0;
  }

 private:
  void Set(Family<Gauge>& family, const char* label, std::string_view value, int64_t number) {
    family.Add({{"device", device_}, {label, std::string(value)}}).Set(static_cast<double>(number));
  }

  Families& families_;
  const std::string device_;
  Gauge& peak_;
  Gauge& queue_rows_;
  TrafficWindow traffic_;
};

// Everything that a scrape answers.
class Collected final : public prometheus::Collectable {
 public:
  Collected() : families_(registry_) {}

  std::vector<MetricFamily> Collect() const override {
    std::vector<MetricFamily> all = registry_.Collect();
    all.push_back(BandwidthRatio());
    for (MetricFamily& family : process_.Collect()) all.push_back(std::move(family));
    // A family without series would be a name without a value.
    std::erase_if(all, [](const MetricFamily& family) { return family.metric.empty(); });
    return all;
  }

  Families& families() { return families_; }

  DeviceHandles* Device(std::string_view device) {
    std::lock_guard lock(mutex_);
    std::unique_ptr<DeviceHandles>& handles = devices_[std::string(device)];
    if (handles == nullptr) {
      handles = std::make_unique<DeviceHandles>(families_, std::string(device));
    }
    return handles.get();
  }

 private:
  MetricFamily BandwidthRatio() const {
    MetricFamily family{"nibble_bandwidth_ratio",
                        fmt::format("Bytes moved per second of device time in the last {} s, as a "
                                    "share of the measured peak; 0 when idle or the peak is "
                                    "unknown.",
                                    TrafficWindow::kSeconds),
                        prometheus::MetricType::Gauge,
                        {}};
    std::lock_guard lock(mutex_);
    for (const auto& [name, handles] : devices_) {
      prometheus::ClientMetric& metric = family.metric.emplace_back();
      metric.label.push_back({"device", name});
      metric.gauge.value = handles->BandwidthRatio();
    }
    return family;
  }

  prometheus::Registry registry_;
  Families families_;
  ProcessMetrics process_;
  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<DeviceHandles>> devices_;
};

class PrometheusMetrics final : public Metrics {
 public:
  PrometheusMetrics(std::string_view version, std::string_view backend)
      : collected_(std::make_shared<Collected>()),
        families_(collected_->families()),
        inflight_(families_.inflight_requests.Add({})) {
    families_.build_info.Add({{"version", std::string(version)}, {"backend", std::string(backend)}})
        .Set(1);
  }

  RpcMetrics* Rpc(std::string_view method) override {
    std::lock_guard lock(mutex_);
    std::unique_ptr<RpcHandles>& handles = rpcs_[std::string(method)];
    if (handles == nullptr) {
      handles = std::make_unique<RpcHandles>(families_, std::string(method));
    }
    return handles.get();
  }

  KernelMetrics* Kernel(std::string_view op, std::string_view format,
                        std::string_view kernel) override {
    const Labels labels = {
        {"op", std::string(op)}, {"format", std::string(format)}, {"kernel", std::string(kernel)}};
    std::lock_guard lock(mutex_);
    std::unique_ptr<KernelHandles>& handles = kernels_[labels];
    if (handles == nullptr) handles = std::make_unique<KernelHandles>(families_, labels);
    return handles.get();
  }

  OpMetrics* Op(std::string_view op) override {
    std::lock_guard lock(mutex_);
    std::unique_ptr<OpHandles>& handles = ops_[std::string(op)];
    if (handles == nullptr) handles = std::make_unique<OpHandles>(families_, std::string(op));
    return handles.get();
  }

  DeviceMetrics* Device(std::string_view device) override { return collected_->Device(device); }

  RejectionMetrics* Rejection(std::string_view reason) override {
    std::lock_guard lock(mutex_);
    std::unique_ptr<RejectionHandle>& handle = rejections_[std::string(reason)];
    if (handle == nullptr) {
      handle = std::make_unique<RejectionHandle>(families_, std::string(reason));
    }
    return handle.get();
  }

  void InflightAdd(int delta) override { inflight_.Increment(delta); }

  absl::StatusOr<int> Serve(const std::string& address) override {
    std::lock_guard lock(mutex_);
    if (exposer_ != nullptr) {
      return absl::FailedPreconditionError(
          fmt::format("metrics on {}: they are already served", address));
    }
    try {
      auto exposer = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
          "listening_ports", address, "num_threads", std::to_string(kServeThreads),
          "request_timeout_ms", std::to_string(kRequestTimeoutMs)});
      exposer->RegisterCollectable(collected_);
      const std::vector<int> ports = exposer->GetListeningPorts();
      if (ports.empty()) return absl::InternalError("metrics: the listener has no port");
      exposer_ = std::move(exposer);
      return ports.front();
    } catch (const std::exception& error) {
      return absl::UnavailableError(fmt::format(
          "metrics cannot be served on {}: {} (the library says: {})", address,
          address.starts_with('[') ? "the HTTP library may have been built without IPv6"
                                   : "expected a free port of an address of this machine",
          error.what()));
    }
  }

  std::string Text() const override {
    return prometheus::TextSerializer().Serialize(collected_->Collect());
  }

 private:
  const std::shared_ptr<Collected> collected_;
  Families& families_;
  Gauge& inflight_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<RpcHandles>> rpcs_;
  std::map<Labels, std::unique_ptr<KernelHandles>> kernels_;
  std::map<std::string, std::unique_ptr<OpHandles>> ops_;
  std::map<std::string, std::unique_ptr<RejectionHandle>> rejections_;
  std::unique_ptr<prometheus::Exposer> exposer_;  // last: its threads read the rest
};

}  // namespace

std::unique_ptr<Metrics> Metrics::Create(std::string_view version, std::string_view backend) {
  return std::make_unique<PrometheusMetrics>(version, backend);
}

}  // namespace nibble::server
