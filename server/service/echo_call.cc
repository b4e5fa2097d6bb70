#include "server/service/echo_call.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "nibble/status.h"
#include "server/service/tensor_message.h"
#include "server/service/wire_split.h"
#include "server/status/status.h"

namespace nibble::server {
namespace {

constexpr std::array<uint32_t, 1> kPayload{v1::EchoRequest::kPayloadFieldNumber};

// Pages of its own, as results have, and never freed: the transport may hold on to them.
const std::vector<char>& Block() {
  constexpr size_t kBlockBytes = size_t{4} << 20;
  static const auto* const block = new std::vector<char>(kBlockBytes, '\x2A');
  return *block;
}

grpc::ByteBuffer Response(uint64_t bytes) {
  std::vector<grpc::Slice> slices;
  if (bytes > 0) {
    std::string head;
    AppendLengthPrefix(v1::EchoResponse::kPayloadFieldNumber, bytes, &head);
    slices.emplace_back(head);
  }
  while (bytes > 0) {
    const uint64_t taken = std::min<uint64_t>(bytes, Block().size());
    slices.emplace_back(Block().data(), taken, grpc::Slice::STATIC_SLICE);
    bytes -= taken;
  }
  return {slices.data(), slices.size()};
}

absl::Status Answer(const ServiceContext& service, const grpc::CallbackServerContext& context,
                    const grpc::ByteBuffer& wire, grpc::ByteBuffer* response) {
  if (!service.enable_echo) {
    return absl::UnimplementedError("Echo: the server runs without --enable-echo");
  }
  NIBBLE_RETURN_IF_ERROR(Admit(service, context, Plane::kData));
  v1::EchoRequest request;
  RequestData data;
  NIBBLE_RETURN_IF_ERROR(data.Parse(wire, {.bytes = kPayload}, request));
  constexpr uint64_t kPrefixBytes = 16;
  if (request.response_bytes() > service.max_message_bytes - kPrefixBytes) {
    return absl::ResourceExhaustedError(
        fmt::format("response_bytes: expected at most {}, so that the reply fits the message limit "
                    "of {} bytes (--max-message-bytes); received {}",
                    service.max_message_bytes - kPrefixBytes, service.max_message_bytes,
                    request.response_bytes()));
  }
  *response = Response(request.response_bytes());
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* AnswerEcho(ServiceContext& service, RpcMetrics* rpc,
                                     grpc::CallbackServerContext& context,
                                     const grpc::ByteBuffer& wire, grpc::ByteBuffer* response) {
  const CallTracker::Live live(service.calls);
  RequestMeter meter(service, rpc);
  const absl::Status status = Answer(service, context, wire, response);
  meter.Finished(status);
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace nibble::server
