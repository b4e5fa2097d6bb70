#include "server/service/credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>

#include "fmt/format.h"
#include "nibble/status.h"

namespace nibble::server {
namespace {

constexpr unsigned kReloadSeconds = 2;

template <typename T, void (*kFree)(T*)>
struct Free {
  void operator()(T* object) const { kFree(object); }
};
using Certificate = std::unique_ptr<X509, Free<X509, X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY, EVP_PKEY_free>>;
using File = std::unique_ptr<BIO, Free<BIO, BIO_free_all>>;

// The library would ask for the password of a key at the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

absl::StatusOr<Certificate> ReadCertificate(std::string_view flag, const std::string& path) {
  const File file(BIO_new_file(path.c_str(), "r"));
  Certificate certificate(
      file == nullptr ? nullptr : PEM_read_bio_X509(file.get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  if (certificate != nullptr) return certificate;
  return absl::InvalidArgumentError(fmt::format(
      "{}: expected a readable PEM file with a certificate; received '{}'", flag, path));
}

absl::StatusOr<Key> ReadKey(std::string_view flag, const std::string& path) {
  const File file(BIO_new_file(path.c_str(), "r"));
  Key key(file == nullptr ? nullptr
                          : PEM_read_bio_PrivateKey(file.get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  if (key != nullptr) return key;
  return absl::InvalidArgumentError(
      fmt::format("{}: expected a readable PEM file with a private key without a password; "
                  "received '{}'",
                  flag, path));
}

// With files that do not fit the server would listen, and refuse every connection.
absl::Status CheckFiles(const TlsFiles& files) {
  NIBBLE_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate("--tls-cert", files.cert));
  NIBBLE_ASSIGN_OR_RETURN(const Key key, ReadKey("--tls-key", files.key));
  const bool fits = X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (!fits) {
    return absl::InvalidArgumentError(
        fmt::format("--tls-key: expected the key of the first certificate of '{}'; received '{}'",
                    files.cert, files.key));
  }
  if (files.client_ca.empty()) return absl::OkStatus();
  return ReadCertificate("--tls-client-ca", files.client_ca).status();
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files) {
  if (files.cert.empty()) return grpc::InsecureServerCredentials();
  NIBBLE_RETURN_IF_ERROR(CheckFiles(files));
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
