// Prometheus metrics. Names, types and labels are frozen by a golden file
// (tests/unit/server_leaves/metric_names.golden). Every handle is made once; the hot path only adds
// to one. Counters live as long as the process.
#ifndef NIBBLE_SERVER_METRICS_METRICS_H_
#define NIBBLE_SERVER_METRICS_METRICS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace nibble::server {

// Metrics of one RPC method.
class RpcMetrics {
 public:
  virtual ~RpcMetrics() = default;
  // `code` is a gRPC status code, 0..16; another counts as UNKNOWN.
  virtual void Finished(int code, double seconds) = 0;
};

// Metrics of one (op, format, kernel).
class KernelMetrics {
 public:
  virtual ~KernelMetrics() = default;
  virtual void BatchDone(double compute_seconds, uint64_t read_bytes, uint64_t written_bytes) = 0;
};

// Metrics of one op.
class OpMetrics {
 public:
  virtual ~OpMetrics() = default;
  virtual void Queued(double seconds) = 0;
  virtual void BatchFormed(int64_t rows) = 0;
};

// Requests refused or dropped for one reason.
class RejectionMetrics {
 public:
  virtual ~RejectionMetrics() = default;
  virtual void Rejected() = 0;
};

// Metrics of one device.
class DeviceMetrics {
 public:
  virtual ~DeviceMetrics() = default;
  virtual void SetPeakBandwidth(double bytes_per_second) = 0;
  // Bytes moved in this much device time. nibble_bandwidth_ratio is, when scraped, the bytes of
  // the last 10 s over their device time, over the peak: the share of the peak that batches reached
  // while they ran, however little of the time that was. 0 when nothing ran or the peak is unknown.
  virtual void AddTraffic(uint64_t bytes, double seconds) = 0;
  virtual void SetQueueRows(int64_t rows) = 0;
  // kind: "total", "used".
  virtual void SetMemory(std::string_view kind, int64_t bytes) = 0;
  virtual void SetResidentBytes(std::string_view format, int64_t bytes) = 0;
  virtual void SetWeights(std::string_view state, int64_t count) = 0;
};

class Metrics {
 public:
  static std::unique_ptr<Metrics> Create(std::string_view version, std::string_view backend);
  virtual ~Metrics() = default;

  // Made on the first call with these labels; the same object ever after. Thread safe, not for the
  // hot path: keep the pointer, which lives as long as this object.
  virtual RpcMetrics* Rpc(std::string_view method) = 0;
  virtual KernelMetrics* Kernel(std::string_view op, std::string_view format,
                                std::string_view kernel) = 0;
  virtual OpMetrics* Op(std::string_view op) = 0;
  virtual DeviceMetrics* Device(std::string_view device) = 0;
  virtual RejectionMetrics* Rejection(std::string_view reason) = 0;  // one of a fixed few

  virtual void InflightAdd(int delta) = 0;

  // Starts serving /metrics on `address` ("host:port"); port 0 picks a free one. Returns the port.
  // kUnavailable names an address that cannot be listened on; kFailedPrecondition: already served.
  virtual absl::StatusOr<int> Serve(const std::string& address) = 0;
  // The text that /metrics answers, without the few exposer_* metrics of the HTTP library.
  virtual std::string Text() const = 0;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_METRICS_METRICS_H_
