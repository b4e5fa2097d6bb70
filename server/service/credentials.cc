#include "server/service/credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <list>
#include <mutex>
#include <string>
#include <utility>

#include "nibble/status.h"

namespace nibble::server {
namespace {

// The library's own watcher of files passes on a key and a certificate that do not belong together,
// and then refuses every connection. So the certificates come from a function that it calls at each
// handshake.
class ReloadingCredentials final : public grpc::ServerCredentials {
 public:
  ReloadingCredentials(std::unique_ptr<CertificateFiles> files, bool ask_clients)
      : files_(std::move(files)),
        request_(ask_clients ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                             : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE) {}

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  // An address's side of the files: the library keeps, for each, what it was last given.
  struct Address {
    CertificateFiles* files;
    std::mutex mutex;
    std::shared_ptr<const Certificates> given;
  };

  int AddPortToServer(const std::string& address, grpc_server* server) override;
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* user_data, grpc_ssl_server_certificate_config** config);

  const std::unique_ptr<CertificateFiles> files_;
  const grpc_ssl_client_certificate_request_type request_;
  std::list<Address> addresses_;
};

int ReloadingCredentials::AddPortToServer(const std::string& address, grpc_server* server) {
  Address& added = addresses_.emplace_back();
  added.files = files_.get();
  grpc_server_credentials* credentials = grpc_ssl_server_credentials_create_with_options(
      grpc_ssl_server_credentials_create_options_using_config_fetcher(request_, &Fetch, &added));
  const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
  grpc_server_credentials_release(credentials);
  return port;
}

grpc_ssl_certificate_config_reload_status ReloadingCredentials::Fetch(
    void* user_data, grpc_ssl_server_certificate_config** config) {
  auto& address = *static_cast<Address*>(user_data);
  std::lock_guard lock(address.mutex);
  const std::shared_ptr<const Certificates> current = address.files->Current();
  if (current == address.given) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  address.given = current;
  const grpc_ssl_pem_key_cert_pair pair{current->key.c_str(), current->cert.c_str()};
  // The library insists on authorities, also where no client is asked for a certificate and they
  // decide nothing.
  const std::string& authorities = current->client_ca.empty() ? current->cert : current->client_ca;
  *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files) {
  if (files.cert.empty()) return grpc::InsecureServerCredentials();
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CertificateFiles> opened, CertificateFiles::Open(files));
  return std::make_shared<ReloadingCredentials>(std::move(opened), !files.client_ca.empty());
}

}  // namespace nibble::server
