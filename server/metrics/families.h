// The families of the registry: names, types and help. Labels are added where the series are made.
#ifndef NIBBLE_SERVER_METRICS_FAMILIES_H_
#define NIBBLE_SERVER_METRICS_FAMILIES_H_

#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace nibble::server {

struct Families {
  explicit Families(prometheus::Registry& registry);

  prometheus::Family<prometheus::Counter>& rpc_requests;
  prometheus::Family<prometheus::Histogram>& rpc_duration;
  prometheus::Family<prometheus::Histogram>& queue_duration;
  prometheus::Family<prometheus::Histogram>& compute_duration;
  prometheus::Family<prometheus::Histogram>& batch_rows;
  prometheus::Family<prometheus::Counter>& batches;
  prometheus::Family<prometheus::Counter>& device_bytes;
  prometheus::Family<prometheus::Gauge>& queue_rows;
  prometheus::Family<prometheus::Gauge>& inflight_requests;
  prometheus::Family<prometheus::Counter>& rejected;
  prometheus::Family<prometheus::Gauge>& resident_bytes;
  prometheus::Family<prometheus::Gauge>& weights;
  prometheus::Family<prometheus::Gauge>& device_memory;
  prometheus::Family<prometheus::Gauge>& peak_bandwidth;
  prometheus::Family<prometheus::Gauge>& build_info;
};

// Upper bounds in seconds: 1-2-5 steps from 10 µs to 10 s.
const prometheus::Histogram::BucketBoundaries& DurationBuckets();
// Upper bounds in rows: the powers of two up to 65536.
const prometheus::Histogram::BucketBoundaries& RowBuckets();

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_METRICS_FAMILIES_H_
