// What is asked: layers, rows and activations, the same for a seed.
#ifndef NIBBLE_CLIENT_LOAD_WORKLOAD_H_
#define NIBBLE_CLIENT_LOAD_WORKLOAD_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/load/distribution.h"
#include "client/cpp/load/exchange.h"
#include "nibble/client.h"

namespace nibble::load {

struct Layer {
  std::string name;
  int64_t n = 0;  // outputs
  int64_t k = 0;  // inputs
  std::string device;
};

// What the flags say of the requests.
struct WorkloadOptions {
  std::vector<std::string> weights;  // names
  std::string pattern;               // or a pattern over the names of the control plane's List
  RowCounts rows = *RowCounts::Parse("1");
  v1::DType dtype = v1::DTYPE_BF16;
  v1::DType output_dtype = v1::DTYPE_UNSPECIFIED;  // the type of x
  v1::QuantMode activation_quant = v1::QUANT_MODE_NONE;
  uint64_t seed = 1;
};

// Rows of activations of one width. A request's x is a stretch of them, so that neither building
// nor sending it copies anything.
struct Activations {
  int64_t k = 0;
  std::vector<float> distinct;  // [kDistinctRows, K], as `dtype` holds them
  std::string bytes;            // the same rows over and over, enough for the largest request
};

class Workload {
 public:
  // Rows that differ; row i + kDistinctRows is row i again.
  static constexpr int64_t kDistinctRows = 16;

  // Asks the server for the layers' sizes: names through the data plane alone (one row of the
  // weight and one product), patterns through the control plane as well. Standard normal
  // activations. kNotFound where a pattern matches no ready layer; kInvalidArgument for requests
  // over the message limit of `max_message_bytes`.
  static absl::StatusOr<Workload> Create(const WorkloadOptions& options, client::Client& client,
                                         int64_t max_message_bytes);
  // Of layers whose sizes are known.
  static absl::StatusOr<Workload> Create(const WorkloadOptions& options, std::vector<Layer> layers,
                                         int64_t max_message_bytes);

  const WorkloadOptions& options() const { return options_; }
  const std::vector<Layer>& layers() const { return layers_; }
  const Activations& activations(const Draw& draw) const {
    return activations_.at(layers_[draw.layer].k);
  }
  const std::map<int64_t, Activations>& all_activations() const { return activations_; }  // by K
  v1::DType output_dtype() const;

  // Bytes of x [rows, K] as they are sent.
  std::span<const char> InputOf(const Draw& draw) const;
  int64_t OutputBytes(const Draw& draw) const;
  int64_t LargestOutputBytes() const;

  // A layer, a number of rows and a first row, each at random.
  Draw Next(Random& random) const;

 private:
  Workload() = default;

  WorkloadOptions options_;
  std::vector<Layer> layers_;
  std::map<int64_t, Activations> activations_;
};

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_WORKLOAD_H_
