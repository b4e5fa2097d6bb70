#include "client/cpp/src/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

namespace nibble::client {
namespace {

absl::StatusOr<std::string> ReadPem(const char* field, const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  if (!file || content.str().empty()) {
    return absl::InvalidArgumentError(std::string(field) + ": cannot read a PEM file at " + path);
  }
  return content.str();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const TlsOptions& tls) {
  if (!tls.enabled) return grpc::InsecureChannelCredentials();
  if (tls.cert_file.empty() != tls.key_file.empty()) {
    return absl::InvalidArgumentError(
        "tls: cert_file and key_file are given together or not at all");
  }
  grpc::SslCredentialsOptions ssl;
  const std::pair<const char*, const std::string&> files[] = {{"tls.ca_file", tls.ca_file},
                                                              {"tls.cert_file", tls.cert_file},
                                                              {"tls.key_file", tls.key_file}};
  std::string* const targets[] = {&ssl.pem_root_certs, &ssl.pem_cert_chain, &ssl.pem_private_key};
  for (size_t i = 0; i < std::size(files); ++i) {
    absl::StatusOr<std::string> pem = ReadPem(files[i].first, files[i].second);
    if (!pem.ok()) return pem.status();
    *targets[i] = *std::move(pem);
  }
  return grpc::SslCredentials(ssl);
}

// "HOST:PORT", "[V6]:PORT", "unix:PATH" or a target with a scheme of gRPC's own.
absl::Status CheckAddress(const std::string& address) {
  const auto wrong = [&](const std::string& expected) {
    return absl::InvalidArgumentError("address: expected " + expected + ", received \"" + address +
                                      "\"");
  };
  if (address.starts_with("unix:")) {
    return address.size() > 5 ? absl::OkStatus() : wrong("a path after unix:");
  }
  if (address.find("://") != std::string::npos) {
    const bool web = address.starts_with("http://") || address.starts_with("https://");
    return web ? wrong("HOST:PORT without http://") : absl::OkStatus();
  }
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return wrong("HOST:PORT or unix:PATH");
  const std::string port = address.substr(colon + 1);
  const bool digits =
      !port.empty() && port.size() <= 5 &&
      std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || std::stoi(port) < 1 || std::stoi(port) > 65535) return wrong("a port of 1..65535");
  return absl::OkStatus();
}

int ClampToInt(int64_t value) {
  return static_cast<int>(std::min<int64_t>(value, std::numeric_limits<int>::max()));
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const ClientOptions& options,
                                                           const std::string& address,
                                                           bool round_robin) {
  if (absl::Status status = CheckAddress(address); !status.ok()) return status;
  auto credentials = Credentials(options.tls);
  if (!credentials.ok()) return credentials.status();
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(ClampToInt(options.max_message_bytes));
  args.SetMaxSendMessageSize(ClampToInt(options.max_message_bytes));
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, ClampToInt(options.keepalive.count()));
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0);
  // A server that comes back is found within a second or two, not within the stock two minutes.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // Otherwise every client of a process shares one connection.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (round_robin) args.SetLoadBalancingPolicyName("round_robin");
  if (!options.tls.server_name.empty()) {
    args.SetSslTargetNameOverride(options.tls.server_name);
  }
  return grpc::CreateCustomChannel(address, *credentials, args);
}

}  // namespace nibble::client
