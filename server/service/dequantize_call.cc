#include "server/service/dequantize_call.h"

#include <utility>

#include "server/status/status.h"

namespace nibble::server {

DequantizeCall::DequantizeCall(ServiceContext& service, const RequestBuilder& builder,
                               RpcMetrics* rpc, grpc::CallbackServerContext& context,
                               const grpc::ByteBuffer& wire)
    : service_(service),
      builder_(builder),
      live_(service.calls),
      meter_(service, rpc),
      stall_(service.stalls, context),
      deadline_(DeadlineOf(context, service.clock)),
      caller_(CallerOf(service, context)) {
  absl::Status status = Admit(service, context, Plane::kData);
  TensorRequest<v1::DequantizeRequest> request;
  if (status.ok()) status = request.Parse(wire);
  if (status.ok()) {
    auto range = builder.ParseDequantize(request.fields);
    status = range.status();
    if (range.ok()) range_ = *std::move(range);
  }
  if (!status.ok()) {
    End(status);
    return;
  }
  range_.weight->counters().requests.fetch_add(1, std::memory_order_relaxed);
  device_index_ = range_.weight->device_index();
  next_row_ = range_.row_begin;
  NextChunk();
}

void DequantizeCall::NextChunk() {
  if (next_row_ == range_.row_end) {
    End(absl::OkStatus());
    return;
  }
  reply_ = {};
  auto prepared = builder_.DequantizeChunk(range_, next_row_, &reply_);
  if (!prepared.ok()) {
    End(prepared.status());
    return;
  }
  Work work = std::move(prepared->work);
  if (const absl::Status held = Hold(service_, caller_, work.bytes); !held.ok()) {
    End(held);
    return;
  }
  held_bytes_ = work.bytes;
  chunk_rows_ = work.rows;
  work.deadline = deadline_;
  work.caller = caller_;
  work.done = [this](const Outcome& outcome) { ChunkDone(outcome); };
  absl::Status refused;
  {
    // Held over Submit, so that a cancel that arrives meanwhile finds the ticket. ChunkDone does
    // not take it.
    std::lock_guard lock(mutex_);
    if (cancelled_) {
      refused = absl::CancelledError("the caller cancelled the request");
    } else {
      auto ticket = service_.engine.batcher(device_index_).Submit(std::move(work));
      if (ticket.ok()) {
        ticket_ = *ticket;
      } else {
        refused = ticket.status();
      }
    }
  }
  if (!refused.ok()) End(refused);
}

void DequantizeCall::ChunkDone(const Outcome& outcome) {
  if (!outcome.status.ok()) {
    End(outcome.status);
    return;
  }
  next_row_ += chunk_rows_;
  FillInfo(outcome, service_, device_index_, range_.weight, reply_.fields.mutable_info());
  encoded_ = reply_.Encode();
  stall_.ForReader();
  StartWrite(&encoded_);
}

void DequantizeCall::OnWriteDone(bool ok) {
  stall_.End();
  LetGo();
  if (ok) {
    NextChunk();
  } else {
    End(stall_.Explain(absl::CancelledError("the caller went away")));
  }
}

void DequantizeCall::OnCancel() {
  std::optional<Batcher::Ticket> ticket;
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    ticket = ticket_;
  }
  if (ticket) service_.engine.batcher(device_index_).Cancel(*ticket);
}

void DequantizeCall::End(const absl::Status& status) {
  meter_.Finished(status);
  // The weight is given back before the caller learns that the call is over.
  range_.weight.reset();
  LetGo();
  stall_.ForReader();
  Finish(ToGrpcStatus(status));
}

void DequantizeCall::LetGo() { service_.held.GiveFrom(caller_, std::exchange(held_bytes_, 0)); }

}  // namespace nibble::server
