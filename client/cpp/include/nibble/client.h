// A client of a nibble server: one object for both planes, thin over the wire messages.
//
//   auto client = nibble::client::Client::Create({.address = "127.0.0.1:50051"});
//   nibble::v1::MatmulRequest request;
//   request.set_weight("m/model.layers.0.mlp.down_proj");
//   *request.mutable_x() = *nibble::client::TensorFromFloats(x, {rows, k}, nibble::v1::DTYPE_BF16);
//   auto reply = (*client)->Matmul(request);
//
// Every method may be called from any number of threads at once. Errors are the server's: the gRPC
// code under its Abseil name, the message unchanged. An error of the client itself (a file that
// cannot be read, a field it needs) says so in the same form.
//
// A caller that moves megabytes per call gains much from an allocator that keeps large blocks
// (tcmalloc, or glibc with M_MMAP_THRESHOLD and M_TRIM_THRESHOLD raised).
#ifndef NIBBLE_CLIENT_H_
#define NIBBLE_CLIENT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nibble/client_memory.h"
#include "nibble/v1/linear.pb.h"
#include "nibble/v1/weights.pb.h"

namespace nibble::client {

// Attempts for calls that are safe to repeat, on UNAVAILABLE alone: Matmul, Dequantize before its
// first chunk, NormQuant, SiluMulQuant, List, Describe, Explain and CheckHealth. Load, the uploads,
// Unload and streams are never repeated. The pause before attempt i + 1 is drawn from
// [0.5, 1] * min(max_backoff, initial_backoff * multiplier^(i - 1)); an attempt whose pause would
// pass the deadline is not made.
struct RetryPolicy {
  int max_attempts = 4;  // 1: never repeat
  std::chrono::milliseconds initial_backoff{50};
  std::chrono::milliseconds max_backoff{2000};
  double multiplier = 2.0;
};

// PEM files. With `enabled` and no ca_file the system's roots are used. cert_file and key_file,
// given together, make it mutual.
struct TlsOptions {
  bool enabled = false;
  std::string ca_file{};
  std::string cert_file{};
  std::string key_file{};
  // Name that the server's certificate must carry, where it is not the address's host.
  std::string server_name{};
};

struct ClientOptions {
  // "HOST:PORT" or "unix:PATH" (any gRPC target works, "dns:///HOST:PORT" too). An empty control
  // address leaves the control plane out: its methods answer kFailedPrecondition.
  std::string address = "127.0.0.1:50051";
  std::string control_address = "127.0.0.1:50052";
  // Largest message, both ways.
  int64_t max_message_bytes = int64_t{256} << 20;
  // Of each call that answers at once or streams rows; 0: none. Load, the uploads, Unload, streams
  // and WatchHealth last as long as they must and have a deadline only if CallOptions gives one.
  std::chrono::milliseconds deadline{60000};
  TlsOptions tls{};
  // Sent as "authorization: Bearer TOKEN"; empty: nothing is sent. An empty control token: the
  // same.
  std::string bearer_token{};
  std::string control_bearer_token{};
  RetryPolicy retry{};
  // Spread data-plane calls over every address that the name resolves to (replicas behind a
  // headless service).
  bool round_robin = false;
  // Idle time before a ping, on connections with a call in flight alone. Servers close connections
  // that ping more often than they allow; 5 minutes is the stock limit.
  std::chrono::milliseconds keepalive{310000};
  // Bytes of one upload chunk; lowered to what a message holds.
  int64_t upload_chunk_bytes = int64_t{1} << 20;
};

struct CallOptions {
  // Replaces ClientOptions::deadline; 0: none.
  std::optional<std::chrono::milliseconds> deadline{};
  // A stop request cancels the call: kCancelled.
  std::stop_token cancel{};
  // Wait for a connection rather than fail with kUnavailable while there is none.
  bool wait_for_ready = false;
};

enum class ServingStatus { kUnknown, kServing, kNotServing, kServiceUnknown };

enum class Plane { kData, kControl };

// One MatmulStream call: any number of requests, several in flight. One thread may Send while
// another Receives; each of the two by one thread at a time. The server holds back when replies are
// not taken, so a caller with many requests in flight receives on a thread of its own. Destruction
// cancels what is still in flight.
class MatmulStream {
 public:
  MatmulStream(const MatmulStream&) = delete;
  MatmulStream& operator=(const MatmulStream&) = delete;
  virtual ~MatmulStream() = default;

  // kFailedPrecondition after Close. kUnavailable says only that the stream has ended: Receive
  // gives the replies that are left and then the reason.
  virtual absl::Status Send(const v1::MatmulRequest& request) = 0;
  // The next reply, in the order of completion; a request that failed is a reply with `error` set.
  // nullopt after the last one. A status other than OK is that of the whole stream.
  virtual absl::StatusOr<std::optional<v1::MatmulStreamResponse>> Receive() = 0;
  // No more requests follow; replies can still be received.
  virtual absl::Status Close() = 0;
  // Ends the stream; Receive then answers kCancelled. From any thread.
  virtual void Cancel() = 0;

 protected:
  MatmulStream() = default;
};

// What an upload becomes.
struct CheckpointUploadOptions {
  std::string name{};
  std::string device{};  // empty: by free memory
  // config.json of the checkpoint; may be empty for bitsandbytes and dense layers.
  std::string config_json{};
  // What unquantized layers become; they stay dense without it.
  std::optional<v1::Quantization> quantize{};
  v1::Fuse fuse = v1::FUSE_UNSPECIFIED;
  std::vector<std::string> layers{};  // regular expressions; empty: every layer
};

struct MatrixUploadOptions {
  std::string name{};
  std::string device{};                     // empty: by free memory
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;  // F32, F16 or BF16
  std::vector<int64_t> shape{};             // [N, K], or [d] for a vector
  v1::FormatSpec target{};
};

// Bytes sent so far, and of all.
using UploadProgress = std::function<void(int64_t bytes_done, int64_t bytes_total)>;

class Client {
 public:
  // Connects lazily. kInvalidArgument: an address, a limit or a TLS file that cannot be used.
  static absl::StatusOr<std::unique_ptr<Client>> Create(ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Data plane.
  absl::StatusOr<v1::MatmulResponse> Matmul(const v1::MatmulRequest& request,
                                            const CallOptions& options = {});
  std::unique_ptr<MatmulStream> OpenMatmulStream(const CallOptions& options = {});
  // Calls `on_chunk` with each chunk, in order; a status other than OK from it ends the call and is
  // returned.
  absl::Status Dequantize(const v1::DequantizeRequest& request,
                          const std::function<absl::Status(v1::DequantizeResponse)>& on_chunk,
                          const CallOptions& options = {});
  // All rows asked for in one tensor [rows, K].
  absl::StatusOr<v1::Tensor> DequantizeAll(const v1::DequantizeRequest& request,
                                           const CallOptions& options = {});
  absl::StatusOr<v1::NormQuantResponse> NormQuant(const v1::NormQuantRequest& request,
                                                  const CallOptions& options = {});
  absl::StatusOr<v1::SiluMulQuantResponse> SiluMulQuant(const v1::SiluMulQuantRequest& request,
                                                        const CallOptions& options = {});
  // Memory shared with a server on the same host; see client_memory.h. The call lasts as long as
  // the memory: it has no deadline, and a stop request detaches it. kUnimplemented where the server
  // does not allow it, kResourceExhausted over its limit, kFailedPrecondition where its file cannot
  // be mapped: on another host, or as another user.
  absl::StatusOr<std::unique_ptr<SharedMemory>> AttachMemory(uint64_t bytes,
                                                             const CallOptions& options = {});

  // Control plane. Load returns the last message, whose `done` is set; `on_progress` may be empty
  // and sees every message.
  absl::StatusOr<v1::LoadProgress> Load(
      const v1::LoadRequest& request,
      const std::function<void(const v1::LoadProgress&)>& on_progress = {},
      const CallOptions& options = {});
  // The bytes of a safetensors file.
  absl::StatusOr<v1::UploadResponse> UploadCheckpoint(const CheckpointUploadOptions& upload,
                                                      std::span<const std::byte> bytes,
                                                      const UploadProgress& on_progress = {},
                                                      const CallOptions& options = {});
  absl::StatusOr<v1::UploadResponse> UploadCheckpointFile(const CheckpointUploadOptions& upload,
                                                          const std::string& path,
                                                          const UploadProgress& on_progress = {},
                                                          const CallOptions& options = {});
  // Row-major little-endian elements; exactly product(shape) of them, or kInvalidArgument.
  absl::StatusOr<v1::UploadResponse> UploadMatrix(const MatrixUploadOptions& upload,
                                                  std::span<const std::byte> elements,
                                                  const UploadProgress& on_progress = {},
                                                  const CallOptions& options = {});
  // The same from a file that holds the elements and nothing else.
  absl::StatusOr<v1::UploadResponse> UploadMatrixFile(const MatrixUploadOptions& upload,
                                                      const std::string& path,
                                                      const UploadProgress& on_progress = {},
                                                      const CallOptions& options = {});
  absl::StatusOr<v1::UnloadResponse> Unload(const v1::UnloadRequest& request,
                                            const CallOptions& options = {});
  absl::StatusOr<v1::ListResponse> List(const v1::ListRequest& request,
                                        const CallOptions& options = {});
  absl::StatusOr<v1::DescribeResponse> Describe(const v1::DescribeRequest& request,
                                                const CallOptions& options = {});
  absl::StatusOr<v1::ExplainResponse> Explain(const v1::ExplainRequest& request,
                                              const CallOptions& options = {});

  // Health of a service by its full name; empty: of the server as a whole. kNotFound: not known.
  absl::StatusOr<ServingStatus> CheckHealth(const std::string& service, Plane plane = Plane::kData,
                                            const CallOptions& options = {});
  // The state now and after every change, until `on_change` returns false (OK) or the call ends.
  absl::Status WatchHealth(const std::string& service,
                           const std::function<bool(ServingStatus)>& on_change,
                           Plane plane = Plane::kData, const CallOptions& options = {});

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::client

#include "nibble/client_tensor.h"

#endif  // NIBBLE_CLIENT_H_
