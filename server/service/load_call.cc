#include "server/service/load_call.h"

#include <memory>
#include <utility>

#include "nibble/status.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/quantized.h"
#include "server/log/log.h"
#include "server/service/format_codec.h"
#include "server/status/status.h"

namespace nibble::server {

absl::StatusOr<Loaded> LoadCall::LoadAll(const std::string& weights_root,
                                         const v1::LoadRequest& request) {
  NIBBLE_RETURN_IF_ERROR(ValidateWeightName(request.name()));
  NIBBLE_ASSIGN_OR_RETURN(const checkpoint::OpenOptions options,
                          ParseOpenOptions(request.fuse(), request.layers()));
  NIBBLE_ASSIGN_OR_RETURN(const std::string directory,
                          ResolveBelowRoot(weights_root, request.path()));
  checkpoint::QuantizePlan plan;
  if (request.has_quantize()) {
    NIBBLE_ASSIGN_OR_RETURN(plan, ParseQuantization(request.quantize(), "quantize"));
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<checkpoint::Checkpoint> opened,
                          checkpoint::Checkpoint::Open(directory, options));
  if (request.has_quantize()) {
    NIBBLE_ASSIGN_OR_RETURN(opened, checkpoint::QuantizeOnLoad(std::move(opened), plan));
  }
  return LoadCheckpoint(
      service_.store, *opened, {request.name(), request.device()},
      [this](const LoadProgress& progress) {
        if (stopping_.load(std::memory_order_relaxed)) cancelled_ = true;
        Report(progress);
      },
      cancelled_);
}

void LoadCall::Run(const std::string& weights_root, const v1::LoadRequest& request) {
  const Clock::TimePoint begin = service_.clock.Now();
  auto loaded = LoadAll(weights_root, request);
  if (!loaded.ok()) {
    log::Warn("load_failed", {{"model", request.name()}, {"error", MessageOf(loaded.status())}});
    End(stopping_ ? absl::UnavailableError("the server is draining") : loaded.status(),
        std::nullopt);
    return;
  }
  log::Info("load_done", {{"model", request.name()},
                          {"weights", loaded->weights.size()},
                          {"bytes", loaded->bytes},
                          {"ms", MicrosecondsBetween(begin, service_.clock.Now()) / 1000}});
  End(absl::OkStatus(), *std::move(loaded));
}

void LoadCall::Report(const LoadProgress& progress) {
  std::lock_guard lock(mutex_);
  latest_.set_bytes_done(progress.bytes_done);
  latest_.set_bytes_total(progress.bytes_total);
  latest_.set_layers_done(progress.layers_done);
  latest_.set_layers_total(progress.layers_total);
  latest_.set_layer(progress.layer);
  dirty_ = true;
  Advance();
}

void LoadCall::End(const absl::Status& status, const std::optional<Loaded>& loaded) {
  meter_.Finished(status);
  std::lock_guard lock(mutex_);
  dirty_ = loaded.has_value();
  if (loaded) {
    latest_.set_done(true);
    for (const std::string& notice : loaded->notices) latest_.add_notices(notice);
  }
  ended_ = status;
  Advance();
}

void LoadCall::Advance() {
  if (writing_ || finished_) return;
  if (dirty_) {
    dirty_ = false;
    writing_ = true;
    writing_message_ = latest_;
    stall_.ForReader();
    StartWrite(&writing_message_);
  } else if (ended_) {
    finished_ = true;
    stall_.ForReader();
    Finish(ToGrpcStatus(*ended_));
  }
}

void LoadCall::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  stall_.End();
  writing_ = false;
  if (!ok) {
    cancelled_ = true;
    dirty_ = false;
  }
  Advance();
}

void LoadCall::OnDone() {
  // Whoever called Finish did so with the mutex held.
  { std::lock_guard lock(mutex_); }
  delete this;
}

}  // namespace nibble::server
