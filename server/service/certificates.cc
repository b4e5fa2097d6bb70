#include "server/service/certificates.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "nibble/status.h"
#include "server/log/log.h"

namespace nibble::server {
namespace {

constexpr size_t kMaxFileBytes = size_t{4} << 20;

// A file that was written to so shortly ago may be written to again without another time.
constexpr int64_t kUnsettledNs = 1'000'000'000;

template <typename T, void (*kFree)(T*)>
struct Free {
  void operator()(T* object) const { kFree(object); }
};
using Certificate = std::unique_ptr<X509, Free<X509, X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY, EVP_PKEY_free>>;
using Memory = std::unique_ptr<BIO, Free<BIO, BIO_free_all>>;

// The library would ask for the password of a key at the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

Memory View(const std::string& text) {
  return Memory(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Empty where it cannot be read, which is no certificate either.
std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

absl::StatusOr<Certificate> ParseCertificate(std::string_view flag, const std::string& path,
                                             const std::string& text) {
  Certificate certificate(PEM_read_bio_X509(View(text).get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  if (certificate != nullptr) return certificate;
  return absl::InvalidArgumentError(fmt::format(
      "{}: expected a readable PEM file with a certificate; received '{}'", flag, path));
}

absl::StatusOr<Key> ParseKey(std::string_view flag, const std::string& path,
                             const std::string& text) {
  Key key(PEM_read_bio_PrivateKey(View(text).get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  if (key != nullptr) return key;
  return absl::InvalidArgumentError(
      fmt::format("{}: expected a readable PEM file with a private key without a password; "
                  "received '{}'",
                  flag, path));
}

int64_t NowNs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

absl::StatusOr<Certificates> ReadCertificates(const TlsFiles& files) {
  Certificates read{Contents(files.cert), Contents(files.key), ""};
  NIBBLE_ASSIGN_OR_RETURN(const Certificate certificate,
                          ParseCertificate("--tls-cert", files.cert, read.cert));
  NIBBLE_ASSIGN_OR_RETURN(const Key key, ParseKey("--tls-key", files.key, read.key));
  const bool fits = X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (!fits) {
    return absl::InvalidArgumentError(
        fmt::format("--tls-key: expected the key of the first certificate of '{}'; received '{}'",
                    files.cert, files.key));
  }
  if (!files.client_ca.empty()) {
    read.client_ca = Contents(files.client_ca);
    NIBBLE_RETURN_IF_ERROR(
        ParseCertificate("--tls-client-ca", files.client_ca, read.client_ca).status());
  }
  return read;
}

absl::StatusOr<std::unique_ptr<CertificateFiles>> CertificateFiles::Open(const TlsFiles& files) {
  std::unique_ptr<CertificateFiles> opened(new CertificateFiles(files));
  opened->seen_ = opened->Look();
  NIBBLE_ASSIGN_OR_RETURN(Certificates read, ReadCertificates(files));
  opened->current_ = std::make_shared<const Certificates>(std::move(read));
  return opened;
}

CertificateFiles::Stamps CertificateFiles::Look() const {
  Stamps stamps;
  const std::array<const std::string*, 3> paths{&files_.cert, &files_.key, &files_.client_ca};
  const int64_t now_ns = NowNs();
  for (size_t i = 0; i < paths.size(); ++i) {
    struct stat status;
    if (paths[i]->empty() || stat(paths[i]->c_str(), &status) != 0) continue;
    const int64_t modified_ns = status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec;
    const bool settled = now_ns - modified_ns > kUnsettledNs;
    stamps[i] = {status.st_dev, status.st_ino, status.st_size, settled ? modified_ns : -now_ns};
  }
  return stamps;
}

std::shared_ptr<const Certificates> CertificateFiles::Current() {
  std::lock_guard lock(mutex_);
  const Stamps stamps = Look();
  if (stamps == seen_) return current_;
  seen_ = stamps;
  absl::StatusOr<Certificates> read = ReadCertificates(files_);
  if (!read.ok()) {
    const std::string fault(MessageOf(read.status()));
    if (fault != last_fault_) log::Warn("certificates_refused", {{"error", fault}});
    last_fault_ = fault;
    return current_;
  }
  last_fault_.clear();
  if (read->cert != current_->cert || read->key != current_->key ||
      read->client_ca != current_->client_ca) {
    current_ = std::make_shared<const Certificates>(*std::move(read));
    log::Info("certificates_taken", {{"cert", files_.cert}});
  }
  return current_;
}

}  // namespace nibble::server
