// One Dequantize call: a chunk of rows at a time, the next one when the last has been written.
#ifndef NIBBLE_SERVER_SERVICE_DEQUANTIZE_CALL_H_
#define NIBBLE_SERVER_SERVICE_DEQUANTIZE_CALL_H_

#include <mutex>
#include <optional>

#include "server/service/call.h"

namespace nibble::server {

class DequantizeCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  DequantizeCall(ServiceContext& service, const RequestBuilder& builder, RpcMetrics* rpc,
                 grpc::CallbackServerContext& context, const grpc::ByteBuffer& wire);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }

 private:
  void NextChunk();
  void ChunkDone(const Outcome& outcome);
  void End(const absl::Status& status);
  void LetGo();

  ServiceContext& service_;
  const RequestBuilder& builder_;
  const CallTracker::Live live_;
  RequestMeter meter_;
  StallWatch::Wait stall_;
  const Clock::TimePoint deadline_;
  const uint64_t caller_;
  RequestBuilder::DequantizeRange range_;
  size_t device_index_ = 0;
  int64_t next_row_ = 0;
  int64_t chunk_rows_ = 0;
  uint64_t held_bytes_ = 0;  // of the chunk
  TensorReply<v1::DequantizeResponse> reply_;
  grpc::ByteBuffer encoded_;

  // Guards what OnCancel, which may run beside a chunk's submission, shares with it.
  std::mutex mutex_;
  bool cancelled_ = false;
  std::optional<Batcher::Ticket> ticket_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_DEQUANTIZE_CALL_H_
