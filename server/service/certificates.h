// The certificate files of a server: read, checked, and read again when they change.
#ifndef NIBBLE_SERVER_SERVICE_CERTIFICATES_H_
#define NIBBLE_SERVER_SERVICE_CERTIFICATES_H_

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"

namespace nibble::server {

struct TlsFiles {
  std::string cert;  // empty: no TLS
  std::string key;
  std::string client_ca;  // given: clients must present a certificate signed by it
};

// The contents of the files, all PEM.
struct Certificates {
  std::string cert;
  std::string key;
  std::string client_ca;
};

// kInvalidArgument for a file that cannot be read or a key that does not belong to the certificate:
// with such files a server would listen, and refuse every connection.
absl::StatusOr<Certificates> ReadCertificates(const TlsFiles& files);

// The last good contents of files that change. Thread safe.
class CertificateFiles {
 public:
  // As ReadCertificates.
  static absl::StatusOr<std::unique_ptr<CertificateFiles>> Open(const TlsFiles& files);

  // Looks at the files and reads them where they have changed. What does not pass the checks, such
  // as a certificate whose key has not been replaced yet, is logged and not taken; it is tried
  // again when the files change again. Never null.
  std::shared_ptr<const Certificates> Current();

 private:
  // What tells that a file is another one, or was written to.
  struct Stamp {
    uint64_t device = 0;
    uint64_t inode = 0;
    int64_t bytes = -1;  // no file
    int64_t modified_ns = 0;
    bool operator==(const Stamp&) const = default;
  };
  using Stamps = std::array<Stamp, 3>;

  explicit CertificateFiles(const TlsFiles& files) : files_(files) {}
  Stamps Look() const;

  const TlsFiles files_;
  std::mutex mutex_;
  Stamps seen_;  // of the files that were last read, whether or not they were taken
  std::string last_fault_;
  std::shared_ptr<const Certificates> current_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_CERTIFICATES_H_
