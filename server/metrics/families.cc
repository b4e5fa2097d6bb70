#include "server/metrics/families.h"

namespace nibble::server {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;

Family<Counter>& AddCounter(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

Family<Gauge>& AddGauge(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

Family<Histogram>& AddHistogram(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

}  // namespace

Families::Families(Registry& registry)
    : rpc_requests(
          AddCounter(registry, "nibble_rpc_requests_total", "RPCs finished, by gRPC status code.")),
      rpc_duration(AddHistogram(registry, "nibble_rpc_duration_seconds",
                                "Time from the start of an RPC to its end.")),
      queue_duration(AddHistogram(registry, "nibble_queue_duration_seconds",
                                  "Time a request waited for its first batch.")),
      compute_duration(
          AddHistogram(registry, "nibble_compute_duration_seconds", "Device time of a batch.")),
      batch_rows(AddHistogram(registry, "nibble_batch_rows", "Rows of a batch.")),
      batches(AddCounter(registry, "nibble_batches_total", "Batches run.")),
      device_bytes(AddCounter(registry, "nibble_device_bytes_total",
                              "Bytes of device memory that batches read and wrote.")),
      queue_rows(
          AddGauge(registry, "nibble_queue_rows", "Rows accepted that no batch has taken yet.")),
      inflight_requests(
          AddGauge(registry, "nibble_inflight_requests", "Requests begun and not yet answered.")),
      rejected(AddCounter(registry, "nibble_rejected_total",
                          "Requests refused or dropped before they ran.")),
      resident_bytes(
          AddGauge(registry, "nibble_weights_resident_bytes", "Device memory that weights hold.")),
      weights(AddGauge(registry, "nibble_weights", "Weights by state.")),
      device_memory(
          AddGauge(registry, "nibble_device_memory_bytes", "Device memory, total and used.")),
      peak_bandwidth(AddGauge(registry, "nibble_device_peak_bandwidth_bytes_per_second",
                              "Measured peak bandwidth of the device's memory; 0 when unknown.")),
      build_info(AddGauge(registry, "nibble_build_info", "Always 1; the labels say what runs.")) {}

const Histogram::BucketBoundaries& DurationBuckets() {
  static const Histogram::BucketBoundaries buckets = {1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3,
                                                      2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1,  0.2,
                                                      0.5,  1,    2,    5,    10};
  return buckets;
}

const Histogram::BucketBoundaries& RowBuckets() {
  static const Histogram::BucketBoundaries buckets = [] {
    Histogram::BucketBoundaries powers;
    for (int rows = 1; rows <= 65536; rows *= 2) powers.push_back(rows);
    return powers;
  }();
  return buckets;
}

}  // namespace nibble::server
