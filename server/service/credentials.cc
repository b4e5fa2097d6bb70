#include "server/service/credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <fstream>

#include "fmt/format.h"

namespace nibble::server {
namespace {

constexpr unsigned kReloadSeconds = 2;

absl::Status CheckPem(const std::string& flag, const std::string& path) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("-----BEGIN ")) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("{}: expected a readable PEM file; received '{}'", flag, path));
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files) {
  if (files.cert.empty()) return grpc::InsecureServerCredentials();
  for (const auto& [flag, path] : {std::pair<std::string, std::string>{"--tls-cert", files.cert},
                                   {"--tls-key", files.key},
                                   {"--tls-client-ca", files.client_ca}}) {
    if (path.empty()) continue;
    if (absl::Status checked = CheckPem(flag, path); !checked.ok()) return checked;
  }
  namespace experimental = grpc::experimental;
  const auto provider = std::make_shared<experimental::FileWatcherCertificateProvider>(
      files.key, files.cert, files.client_ca, kReloadSeconds);
  experimental::TlsServerCredentialsOptions options(provider);
  options.watch_identity_key_cert_pairs();
  if (!files.client_ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return experimental::TlsServerCredentials(options);
}

}  // namespace nibble::server
