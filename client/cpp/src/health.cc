#include "client/cpp/src/impl.h"

namespace nibble::client {
namespace {

namespace health = grpc::health::v1;

ServingStatus FromWire(health::HealthCheckResponse::ServingStatus status) {
  switch (status) {
    case health::HealthCheckResponse::SERVING:
      return ServingStatus::kServing;
    case health::HealthCheckResponse::NOT_SERVING:
      return ServingStatus::kNotServing;
    case health::HealthCheckResponse::SERVICE_UNKNOWN:
      return ServingStatus::kServiceUnknown;
    default:
      return ServingStatus::kUnknown;
  }
}

}  // namespace

absl::StatusOr<ServingStatus> Client::CheckHealth(const std::string& service, Plane plane,
                                                  const CallOptions& options) {
  health::HealthCheckRequest request;
  request.set_service(service);
  health::HealthCheckResponse response;
  absl::Status status = impl_->CallRepeatable(plane, options, [&](grpc::ClientContext& context) {
    auto& stub = plane == Plane::kData ? impl_->data_health : impl_->control_health;
    return stub->Check(&context, request, &response);
  });
  if (!status.ok()) return status;
  return FromWire(response.status());
}

absl::Status Client::WatchHealth(const std::string& service,
                                 const std::function<bool(ServingStatus)>& on_change, Plane plane,
                                 const CallOptions& options) {
  health::HealthCheckRequest request;
  request.set_service(service);
  bool ended = false;
  absl::Status status = impl_->CallOnce(plane, options, [&](grpc::ClientContext& context) {
    auto& stub = plane == Plane::kData ? impl_->data_health : impl_->control_health;
    auto reader = stub->Watch(&context, request);
    health::HealthCheckResponse response;
    while (!ended && reader->Read(&response)) {
      if (!on_change(FromWire(response.status()))) {
        ended = true;
        context.TryCancel();
      }
    }
    return reader->Finish();
  });
  return ended ? absl::OkStatus() : status;
}

}  // namespace nibble::client
