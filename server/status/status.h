// The one place where a Status becomes a gRPC status.
#ifndef NIBBLE_SERVER_STATUS_STATUS_H_
#define NIBBLE_SERVER_STATUS_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace nibble::server {

// The codes are numbered alike in both; the message is passed on.
inline grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.raw_code()),
          std::string(status.message().data(), status.message().size())};
}

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_STATUS_STATUS_H_
