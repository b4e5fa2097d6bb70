// Transport security of the listeners.
#ifndef NIBBLE_SERVER_SERVICE_CREDENTIALS_H_
#define NIBBLE_SERVER_SERVICE_CREDENTIALS_H_

#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace nibble::server {

struct TlsFiles {
  std::string cert;  // empty: no TLS
  std::string key;
  std::string client_ca;  // given: clients must present a certificate signed by it
};

// Plain text without files. With them TLS whose files are read again every few seconds, so that
// renewed certificates take effect without a restart. kInvalidArgument for a file that cannot be
// read or a key that does not belong to the certificate.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_CREDENTIALS_H_
