// The whole server in one object: devices, store, engine, services and listeners, from start to
// drain.
//
//   Start (listeners open, NOT_SERVING) -> LoadModels (SERVING) -> Drain (NOT_SERVING, grace, new
//   calls refused, accepted work finished, listeners close) -> destroyed
#ifndef NIBBLE_SERVER_SERVER_H_
#define NIBBLE_SERVER_SERVER_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "server/config/config.h"

namespace nibble::server {

class Server {
 public:
  // Opens the devices and the listeners; writes the port file. `on_device_lost` is called once,
  // from any thread, when a device can no longer be used; the server is then NOT_SERVING.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const Config& config, std::function<void(const absl::Status&)> on_device_lost);
  virtual ~Server() = default;

  // Loads the configured models, then reports SERVING. Ends early, with kCancelled, once Drain has
  // begun.
  virtual absl::Status LoadModels() = 0;

  // From any thread, while LoadModels may still run: NOT_SERVING at once; after the grace period
  // new calls are refused, accepted ones are finished within the drain timeout and cancelled after
  // it, and the listeners close.
  virtual void Drain() = 0;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVER_H_
