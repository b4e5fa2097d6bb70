// Calls a server that is not there, through the installed headers alone.
#include <chrono>
#include <cstdio>
#include <vector>

#include "nibble/client.h"

int main() {
  nibble::client::ClientOptions options;
  options.address = "unix:nibble-consumer-no-such-socket";
  options.control_address = "";
  options.deadline = std::chrono::seconds(10);
  options.retry.max_attempts = 1;
  const auto client = nibble::client::Client::Create(options);
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", client.status().ToString().c_str());
    return 1;
  }
  nibble::v1::MatmulRequest request;
  request.set_weight("m/layer");
  const auto reply = (*client)->Matmul(request);
  std::printf("%s\n", reply.status().ToString().c_str());
  return reply.status().code() == absl::StatusCode::kUnavailable ? 0 : 1;
}
