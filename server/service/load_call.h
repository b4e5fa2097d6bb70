// One Load call: the checkpoint is loaded on a worker while progress is written as fast as the
// caller takes it, the newest state each time.
#ifndef NIBBLE_SERVER_SERVICE_LOAD_CALL_H_
#define NIBBLE_SERVER_SERVICE_LOAD_CALL_H_

#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include "nibble/v1/weights.grpc.pb.h"
#include "server/loader/loader.h"
#include "server/service/call.h"

namespace nibble::server {

class LoadCall final : public grpc::ServerWriteReactor<v1::LoadProgress> {
 public:
  // `stopping` outlives the call.
  LoadCall(ServiceContext& service, RpcMetrics* rpc, const std::atomic<bool>& stopping,
           grpc::CallbackServerContext& context)
      : service_(service),
        stopping_(stopping),
        live_(service.calls),
        meter_(service, rpc),
        stall_(service.stalls, context) {}

  // On a worker thread, or in the handler for a refusal: loads and ends the call.
  void Run(const std::string& weights_root, const v1::LoadRequest& request);
  void Refuse(const absl::Status& status) { End(status, std::nullopt); }

  void OnWriteDone(bool ok) override;
  void OnCancel() override { cancelled_.store(true, std::memory_order_relaxed); }
  void OnDone() override;

 private:
  absl::StatusOr<Loaded> LoadAll(const std::string& weights_root, const v1::LoadRequest& request);
  void Report(const LoadProgress& progress);
  void End(const absl::Status& status, const std::optional<Loaded>& loaded);
  // With mutex_ held.
  void Advance();

  ServiceContext& service_;
  const std::atomic<bool>& stopping_;
  const CallTracker::Live live_;
  RequestMeter meter_;
  StallWatch::Wait stall_;
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  v1::LoadProgress latest_;
  v1::LoadProgress writing_message_;
  bool dirty_ = false;  // latest_ is newer than what was written
  bool writing_ = false;
  std::optional<absl::Status> ended_;
  bool finished_ = false;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_LOAD_CALL_H_
