// Memory that this process and a server on the same host both map.
#ifndef NIBBLE_CLIENT_LOAD_SHARED_REGION_H_
#define NIBBLE_CLIENT_LOAD_SHARED_REGION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/load/operation.h"
#include "client/cpp/load/workload.h"
#include "nibble/client.h"

namespace nibble::load {

// Attached for as long as this lives: an AttachMemory call is kept open.
class SharedRegion {
 public:
  // Room for the workload's activations, which are copied in, and for y of `exchanges` requests.
  // The server's errors, or kFailedPrecondition where its file cannot be mapped.
  static absl::StatusOr<std::unique_ptr<SharedRegion>> Attach(
      const client::ClientOptions& connection, const Workload& workload, int64_t exchanges);
  virtual ~SharedRegion() = default;

  virtual const SharedTensors& tensors() const = 0;
};

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_SHARED_REGION_H_
