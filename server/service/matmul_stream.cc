#include "server/service/matmul_stream.h"

#include <string>
#include <utility>
#include <vector>

#include "nibble/status.h"
#include "server/status/status.h"

namespace nibble::server {

MatmulStreamCall::MatmulStreamCall(ServiceContext& service, const RequestBuilder& builder,
                                   RpcMetrics* rpc, StreamRegistry& registry,
                                   grpc::CallbackServerContext& context)
    : service_(service),
      builder_(builder),
      live_(service.calls),
      rpc_(rpc),
      stall_(service.stalls, context),
      registry_(registry),
      deadline_(DeadlineOf(context, service.clock)),
      caller_(CallerOf(service, context)),
      ending_(Admit(service, context, Plane::kData)) {
  // A stream's requests are counted, not the stream; one that is refused has none.
  if (!ending_.ok()) RequestMeter(service, rpc).Finished(ending_);
  registry_.Add(this);
  std::lock_guard lock(mutex_);
  Advance();
}

void MatmulStreamCall::OnReadDone(bool ok) {
  Exchange* exchange = nullptr;
  uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    reading_ = false;
    // A read that was under way when the call was finished may still bring a request: nothing would
    // wait for its answer.
    if (!ok || cancelled_ || finished_) {
      half_closed_ = true;
      next_.reset();
      Advance();
      return;
    }
    exchange = Accept();
    if (exchange == nullptr) {
      Advance();
      return;
    }
    number = exchange->number;
  }
  Start(exchange, number);
  std::lock_guard lock(mutex_);
  Advance();
}

MatmulStreamCall::Exchange* MatmulStreamCall::Accept() {
  const absl::Status parsed = next_->request.Parse(next_->wire);
  next_->wire.Clear();
  if (!parsed.ok()) {
    // Nobody knows which request it was, so there is none to answer.
    RequestMeter(service_, rpc_).Finished(parsed);
    if (ending_.ok()) ending_ = parsed;
    next_.reset();
    return nullptr;
  }
  Exchange* const exchange = next_.release();
  exchange->number = requests_read_++;
  running_.emplace(exchange->number, exchange);
  return exchange;
}

absl::StatusOr<Prepared> MatmulStreamCall::Prepare(Exchange* exchange) {
  NIBBLE_ASSIGN_OR_RETURN(Prepared prepared, builder_.Matmul(exchange->request, &exchange->result));
  prepared.work.caller = caller_;
  NIBBLE_RETURN_IF_ERROR(Hold(service_, caller_, prepared.work.bytes));
  std::lock_guard lock(mutex_);
  exchange->bytes = prepared.work.bytes;
  held_bytes_ += exchange->bytes;
  return prepared;
}

void MatmulStreamCall::Start(Exchange* exchange, uint64_t number) {
  exchange->meter.emplace(service_, rpc_);
  auto prepared = Prepare(exchange);
  if (!prepared.ok()) {
    Outcome refused;
    refused.status = prepared.status();
    Answered(exchange, refused, nullptr);
    return;
  }
  const size_t device_index = exchange->device_index = prepared->device_index;
  WeightHandle weight = prepared->weight;
  const auto done = [this, exchange, weight = std::move(weight)](const Outcome& outcome) {
    Answered(exchange, outcome, weight);
  };
  const auto ticket = SubmitPrepared(service_, *std::move(prepared), deadline_, done);
  if (!ticket) return;
  bool cancelled = false;
  {
    std::lock_guard lock(mutex_);
    // The request may have been answered, and freed, meanwhile.
    if (running_.contains(number)) exchange->ticket = ticket;
    cancelled = cancelled_;
  }
  if (cancelled) service_.engine.batcher(device_index).Cancel(*ticket);
}

void MatmulStreamCall::Answered(Exchange* exchange, const Outcome& outcome,
                                const WeightHandle& weight) {
  exchange->meter->Finished(outcome.status);
  v1::MatmulStreamResponse head;
  head.set_request_id(exchange->request.fields.request_id());
  if (outcome.status.ok()) {
    FillInfo(outcome, service_, exchange->device_index, weight,
             exchange->result.fields.mutable_info());
    exchange->wire =
        EncodeReplyWithin(head.SerializeAsString(), v1::MatmulStreamResponse::kResultFieldNumber,
                          exchange->result.fields, exchange->result.tensors);
  } else {
    head.mutable_error()->set_code(outcome.status.raw_code());
    head.mutable_error()->set_message(std::string(MessageOf(outcome.status)));
    exchange->wire = EncodeReply(head, {});
    exchange->result.tensors.clear();
  }
  std::lock_guard lock(mutex_);
  running_.erase(exchange->number);
  ready_.emplace_back(exchange);
  Advance();
}

void MatmulStreamCall::Advance() {
  if (finished_) return;
  const bool accepting = ending_.ok() && !half_closed_ && !cancelled_;
  if (!writing_ && !ready_.empty()) {
    if (cancelled_) {
      ready_.clear();
    } else {
      writing_ = true;
      stall_.ForReader();
      StartWrite(&ready_.front()->wire);
    }
  }
  if (accepting) {
    if (!reading_ && running_.size() + ready_.size() < kMaxInFlight &&
        held_bytes_ < kMaxHeldBytes) {
      reading_ = true;
      next_ = std::make_unique<Exchange>();
      StartRead(&next_->wire);
    }
    return;
  }
  if (running_.empty() && ready_.empty() && !writing_) {
    finished_ = true;
    stall_.ForReader();
    Finish(cancelled_ ? grpc::Status::CANCELLED : ToGrpcStatus(ending_));
  }
}

void MatmulStreamCall::OnWriteDone(bool ok) {
  std::unique_ptr<Exchange> written;
  std::lock_guard lock(mutex_);
  stall_.End();
  writing_ = false;
  written = std::move(ready_.front());
  ready_.pop_front();
  held_bytes_ -= written->bytes;
  service_.held.GiveFrom(caller_, written->bytes);
  if (!ok) cancelled_ = true;
  Advance();
}

void MatmulStreamCall::OnCancel() {
  std::vector<std::pair<size_t, Batcher::Ticket>> tickets;
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    for (const auto& [number, exchange] : running_) {
      if (exchange->ticket) tickets.emplace_back(exchange->device_index, *exchange->ticket);
    }
  }
  for (const auto& [device_index, ticket] : tickets) {
    service_.engine.batcher(device_index).Cancel(ticket);
  }
  std::lock_guard lock(mutex_);
  Advance();
}

void MatmulStreamCall::Drain() {
  std::lock_guard lock(mutex_);
  if (ending_.ok()) ending_ = absl::UnavailableError("the server is draining; try another replica");
  Advance();
}

void MatmulStreamCall::OnDone() {
  registry_.Remove(this);
  // Whoever called Finish did so with the mutex held.
  { std::lock_guard lock(mutex_); }
  delete this;
}

}  // namespace nibble::server
