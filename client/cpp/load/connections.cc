#include "client/cpp/load/connections.h"

#include <chrono>

#include "client/cpp/src/channel.h"
#include "fmt/format.h"

namespace nibble::load {
namespace {

constexpr std::chrono::seconds kConnectTimeout{10};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Stub>>> Connect(const SenderOptions& options) {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < options.connections; ++i) {
    auto channel = client::OpenChannel(options.connection, options.connection.address, false);
    if (!channel.ok()) return channel.status();
    (*channel)->GetState(true);  // begins to connect
    channels.push_back(*std::move(channel));
  }
  const auto deadline = std::chrono::system_clock::now() + kConnectTimeout;
  std::vector<std::unique_ptr<Stub>> stubs;
  for (const std::shared_ptr<grpc::Channel>& channel : channels) {
    if (!channel->WaitForConnected(deadline)) {
      return absl::UnavailableError(
          fmt::format("connection {} of {} to {} was not there within {} s", stubs.size() + 1,
                      options.connections, options.connection.address, kConnectTimeout.count()));
    }
    stubs.push_back(std::make_unique<Stub>(channel));
  }
  return stubs;
}

void Prepare(grpc::ClientContext& context, const SenderOptions& options, int64_t deadline_ms) {
  if (deadline_ms > 0) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(deadline_ms));
  }
  if (!options.connection.bearer_token.empty()) {
    context.AddMetadata("authorization", "Bearer " + options.connection.bearer_token);
  }
}

void SetError(const grpc::Status& status, Answer& answer) {
  answer.code = absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()));
  answer.message = status.error_message();
}

Event NextEvent(grpc::CompletionQueue& queue, int64_t wait_ns) {
  Event event;
  const auto until = std::chrono::system_clock::now() + std::chrono::nanoseconds(wait_ns);
  if (queue.AsyncNext(&event.tag, &event.ok, until) != grpc::CompletionQueue::GOT_EVENT) return {};
  return event;
}

}  // namespace nibble::load
