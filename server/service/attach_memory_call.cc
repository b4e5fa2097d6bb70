#include "server/service/attach_memory_call.h"

#include <array>
#include <string_view>

#include "fmt/format.h"
#include "nibble/status.h"
#include "server/log/log.h"
#include "server/status/status.h"

namespace nibble::server {
namespace {

// A caller elsewhere could not open the region, only take memory.
bool IsOnThisHost(std::string_view peer) {
  constexpr std::array<std::string_view, 5> kLocal = {"unix:", "ipv4:127.", "ipv6:[::1]",
                                                      "ipv6:%5B::1%5D", "ipv6:[::ffff:127."};
  for (const std::string_view prefix : kLocal) {
    if (peer.starts_with(prefix)) return true;
  }
  return false;
}

absl::Status AdmitCaller(const ServiceContext& service,
                         const grpc::CallbackServerContext& context) {
  if (service.shared_memory == nullptr) {
    return absl::UnimplementedError("AttachMemory: the server runs without --allow-shared-memory");
  }
  NIBBLE_RETURN_IF_ERROR(Admit(service, context, Plane::kData));
  if (!IsOnThisHost(context.peer())) {
    return absl::PermissionDeniedError(
        fmt::format("AttachMemory: expected a caller on the server's host, by loopback or Unix "
                    "socket; received {}",
                    context.peer()));
  }
  return absl::OkStatus();
}

}  // namespace

AttachMemoryCall::AttachMemoryCall(ServiceContext& service, RpcMetrics* rpc,
                                   StreamRegistry& registry,
                                   const grpc::CallbackServerContext& context)
    : service_(service),
      live_(service.calls),
      meter_(service, rpc),
      registry_(registry),
      peer_(context.peer()) {
  registry_.Add(this);
  const absl::Status admitted = AdmitCaller(service, context);
  std::lock_guard lock(mutex_);
  if (ended_) return;
  if (!admitted.ok()) {
    End(admitted);
    return;
  }
  StartRead(&request_);
}

absl::Status AttachMemoryCall::Attach() {
  NIBBLE_ASSIGN_OR_RETURN(region_, service_.shared_memory->Attach(request_.bytes()));
  response_.set_region(region_->id());
  response_.set_path(region_->path());
  response_.set_bytes(region_->bytes().size());
  log::Info("memory_attached", {{"peer", peer_}, {"bytes", response_.bytes()}});
  return absl::OkStatus();
}

void AttachMemoryCall::OnReadDone(bool ok) {
  std::lock_guard lock(mutex_);
  if (ended_) return;
  if (!ok) {
    End(region_ != nullptr
            ? absl::OkStatus()
            : absl::InvalidArgumentError("AttachMemory: expected a request; received none"));
    return;
  }
  const absl::Status status =
      region_ == nullptr
          ? Attach()
          : absl::InvalidArgumentError("AttachMemory: expected one request; received another");
  if (!status.ok()) {
    End(status);
    return;
  }
  StartWrite(&response_);
  StartRead(&request_);
}

void AttachMemoryCall::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  if (!ok) End(absl::CancelledError("the caller went away"));
}

void AttachMemoryCall::OnCancel() {
  std::lock_guard lock(mutex_);
  End(absl::CancelledError("the caller cancelled the call"));
}

void AttachMemoryCall::Drain() {
  std::lock_guard lock(mutex_);
  End(absl::UnavailableError("the server is draining"));
}

void AttachMemoryCall::End(const absl::Status& status) {
  if (ended_) return;
  ended_ = true;
  if (region_ != nullptr) {
    service_.shared_memory->Detach(region_->id());
    region_.reset();
    log::Info("memory_detached", {{"peer", peer_}, {"bytes", response_.bytes()}});
  }
  meter_.Finished(status);
  Finish(ToGrpcStatus(status));
}

void AttachMemoryCall::OnDone() {
  registry_.Remove(this);
  // Whoever called Finish did so with the mutex held.
  { std::lock_guard lock(mutex_); }
  delete this;
}

}  // namespace nibble::server
