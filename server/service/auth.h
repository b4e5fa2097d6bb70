// Bearer tokens: which callers may use a plane.
#ifndef NIBBLE_SERVER_SERVICE_AUTH_H_
#define NIBBLE_SERVER_SERVICE_AUTH_H_

#include <grpcpp/server_context.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::server {

// The tokens of one plane. Without any, everyone may use it.
class TokenSet {
 public:
  TokenSet() = default;
  // One token a line; empty lines and lines that start with '#' are skipped. kInvalidArgument for
  // an unreadable file, a file without tokens, or a token with white space in it. Messages never
  // show a token.
  static absl::StatusOr<TokenSet> FromFile(const std::string& path);

  bool empty() const { return tokens_.empty(); }
  // Compares in a time that does not depend on where two tokens differ.
  bool Contains(std::string_view token) const;

 private:
  std::vector<std::string> tokens_;
};

struct AuthTokens {
  TokenSet data;
  TokenSet control;
};

enum class Plane { kData, kControl };

// OK when the caller's "authorization: Bearer TOKEN" is a token of `plane`, or the plane has none.
// kUnauthenticated without a known token, kPermissionDenied with a token of the other plane.
absl::Status Authorize(const grpc::ServerContextBase& context, const AuthTokens& tokens,
                       Plane plane);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_AUTH_H_
