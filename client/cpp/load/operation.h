// The messages of a run: requests that are built without copying activations, and replies that are
// read without copying results.
#ifndef NIBBLE_CLIENT_LOAD_OPERATION_H_
#define NIBBLE_CLIENT_LOAD_OPERATION_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "client/cpp/load/exchange.h"
#include "client/cpp/load/workload.h"

namespace nibble::load {

// Where the tensors of a run lie that do not travel in messages.
struct SharedTensors {
  std::string region;                       // its name on the wire
  const char* memory = nullptr;             // as it is mapped here
  std::map<int64_t, int64_t> input_offset;  // of the activations' bytes, by K
  int64_t output_offset = 0;
  int64_t output_stride = 0;  // y of exchange i lies at output_offset + i * output_stride
};

class Operation {
 public:
  virtual ~Operation() = default;
  // Full name of the RPC: "/nibble.v1.Linear/Matmul".
  virtual std::string method() const = 0;
  // The request of `exchange.draw`; sets answer.request_bytes. The buffer refers to the workload,
  // which has to outlive the call.
  virtual grpc::ByteBuffer Encode(Exchange& exchange) const = 0;
  // Fills exchange.answer from the reply; what is malformed becomes answer.fault.
  virtual void Decode(grpc::ByteBuffer& reply, Exchange& exchange) const = 0;
};

class MatmulOperation final : public Operation {
 public:
  // `stream`: messages of MatmulStream, with the exchange's number as request_id. Tensors lie in
  // `shared` where that is not null. Workload and `shared` outlive this.
  MatmulOperation(const Workload& workload, bool stream, const SharedTensors* shared)
      : workload_(workload), stream_(stream), shared_(shared) {}

  std::string method() const override;
  grpc::ByteBuffer Encode(Exchange& exchange) const override;
  void Decode(grpc::ByteBuffer& reply, Exchange& exchange) const override;

 private:
  const Workload& workload_;
  const bool stream_;
  const SharedTensors* const shared_;
};

// The number of the exchange that a reply of MatmulStream belongs to; -1 without one.
int64_t ExchangeNumberOf(grpc::ByteBuffer& reply);

// The same bytes in and out, and nothing computed.
class EchoOperation final : public Operation {
 public:
  explicit EchoOperation(const Workload& workload) : workload_(workload) {}

  std::string method() const override;
  grpc::ByteBuffer Encode(Exchange& exchange) const override;
  void Decode(grpc::ByteBuffer& reply, Exchange& exchange) const override;

 private:
  const Workload& workload_;
};

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_OPERATION_H_
