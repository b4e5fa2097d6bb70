// Transport security of the listeners.
#ifndef NIBBLE_SERVER_SERVICE_CREDENTIALS_H_
#define NIBBLE_SERVER_SERVICE_CREDENTIALS_H_

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "absl/status/statusor.h"
#include "server/service/certificates.h"

namespace nibble::server {

// Plain text without files. With them TLS whose files are looked at whenever a connection is made,
// so that renewed certificates take effect without a restart; while the files are broken, new
// connections get the last good ones. kInvalidArgument for a file that cannot be read or a key that
// does not belong to the certificate.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_CREDENTIALS_H_
