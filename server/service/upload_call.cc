#include "server/service/upload_call.h"

#include <utility>

#include "fmt/format.h"
#include "nibble/quantize.h"
#include "nibble/status.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/quantized.h"
#include "server/log/log.h"
#include "server/service/format_codec.h"
#include "server/service/tensor_codec.h"
#include "server/status/status.h"

namespace nibble::server {
namespace {

// [N, K] of a matrix, [1, d] of a vector. kInvalidArgument unless that takes exactly `total_bytes`.
absl::StatusOr<ConstMatrixView> MatrixShape(const v1::MatrixUpload& matrix, int64_t total_bytes) {
  NIBBLE_ASSIGN_OR_RETURN(const DType dtype,
                          ParseDType(matrix.dtype(), DType::kBF16,
                                     {DType::kF32, DType::kF16, DType::kBF16}, "matrix.dtype"));
  if (matrix.shape_size() < 1 || matrix.shape_size() > 2) {
    return absl::InvalidArgumentError(fmt::format(
        "matrix.shape: expected [N, K] or [d]; received {} dimensions", matrix.shape_size()));
  }
  const int64_t n = matrix.shape_size() == 2 ? matrix.shape(0) : 1;
  const int64_t k = matrix.shape(matrix.shape_size() - 1);
  const auto elements = CheckedMul(n, k);
  const auto bytes =
      elements ? CheckedMul(*elements, static_cast<int64_t>(DTypeBytes(dtype))) : elements;
  if (!bytes || *bytes == 0 || *bytes != total_bytes) {
    return absl::InvalidArgumentError(
        fmt::format("matrix.shape: expected a shape of total_bytes = {} bytes; received {} {} x {}",
                    total_bytes, DTypeName(dtype), n, k));
  }
  return MakeConstView(nullptr, dtype, n, k);
}

absl::Status Draining() { return absl::UnavailableError("the server is draining"); }

}  // namespace

UploadCall::UploadCall(ServiceContext& service, RpcMetrics* rpc, uint64_t max_upload_bytes,
                       WorkerPool& workers, StreamRegistry& registry,
                       grpc::CallbackServerContext& context, v1::UploadResponse* response)
    : service_(service),
      live_(service.calls),
      meter_(service, rpc),
      stall_(service.stalls, context),
      max_upload_bytes_(max_upload_bytes),
      workers_(workers),
      registry_(registry),
      response_(response) {
  registry_.Add(this);
  std::lock_guard lock(mutex_);
  if (ended_) return;
  if (const absl::Status admitted = Admit(service, context, Plane::kControl); !admitted.ok()) {
    End(admitted);
    return;
  }
  ReadNext();
}

void UploadCall::ReadNext() {
  stall_.ForWriter();
  StartRead(&request_);
}

absl::Status UploadCall::TakeHeader(const v1::UploadHeader& header) {
  NIBBLE_RETURN_IF_ERROR(ValidateWeightName(header.name()));
  if (header.total_bytes() <= 0) {
    return absl::InvalidArgumentError(
        fmt::format("total_bytes: expected at least 1; received {}", header.total_bytes()));
  }
  if (static_cast<uint64_t>(header.total_bytes()) > max_upload_bytes_) {
    return absl::ResourceExhaustedError(
        fmt::format("total_bytes: expected at most {} (--max-upload-bytes); received {}",
                    max_upload_bytes_, header.total_bytes()));
  }
  switch (header.kind_case()) {
    case v1::UploadHeader::kCheckpoint:
      if (header.checkpoint().has_quantize()) {
        NIBBLE_RETURN_IF_ERROR(
            ParseQuantization(header.checkpoint().quantize(), "checkpoint.quantize").status());
      }
      NIBBLE_RETURN_IF_ERROR(
          ParseOpenOptions(header.checkpoint().fuse(), header.checkpoint().layers()).status());
      break;
    case v1::UploadHeader::kMatrix: {
      NIBBLE_ASSIGN_OR_RETURN(const ConstMatrixView shape,
                              MatrixShape(header.matrix(), header.total_bytes()));
      NIBBLE_RETURN_IF_ERROR(
          ParseFormat(header.matrix().target(), shape.rows, shape.cols, "matrix.target").status());
      break;
    }
    default:
      return absl::InvalidArgumentError("kind: expected checkpoint or matrix; received neither");
  }
  const auto announced = static_cast<uint64_t>(header.total_bytes());
  if (!service_.uploads.Take(announced)) {
    return absl::ResourceExhaustedError(
        fmt::format("total_bytes: expected at most {} in all uploads under way together "
                    "(--max-concurrent-upload-bytes); received {} more; try again later",
                    service_.uploads.limit(), announced));
  }
  announced_bytes_ = announced;
  NIBBLE_ASSIGN_OR_RETURN(spool_, Spool::Create());
  header_ = header;
  has_header_ = true;
  return absl::OkStatus();
}

absl::Status UploadCall::TakeChunk(const std::string& chunk) {
  if (!has_header_) {
    return absl::InvalidArgumentError("part: expected the header first; received a chunk");
  }
  const uint64_t total = static_cast<uint64_t>(header_.total_bytes());
  if (chunk.size() > total - spool_->size()) {
    return absl::InvalidArgumentError(
        fmt::format("chunk: expected at most total_bytes = {} bytes in all; received at least {}",
                    total, spool_->size() + chunk.size()));
  }
  return spool_->Append(chunk);
}

absl::Status UploadCall::TakeMessage() {
  switch (request_.part_case()) {
    case v1::UploadRequest::kHeader:
      if (!has_header_) return TakeHeader(request_.header());
      return absl::InvalidArgumentError("part: expected one header; received another");
    case v1::UploadRequest::kChunk:
      return TakeChunk(request_.chunk());
    default:
      return absl::InvalidArgumentError("part: expected a header or a chunk; received neither");
  }
}

void UploadCall::OnReadDone(bool ok) {
  std::lock_guard lock(mutex_);
  stall_.End();
  if (ended_) return;
  absl::Status status = stall_.Explain(absl::OkStatus());
  if (!status.ok()) {
    // The peer has been given up.
  } else if (cancelled_) {
    status = absl::CancelledError("the caller cancelled the upload");
  } else if (ok) {
    status = TakeMessage();
  } else if (!has_header_) {
    status = absl::InvalidArgumentError("part: expected a header; the stream ended before it");
  } else if (spool_->size() != static_cast<uint64_t>(header_.total_bytes())) {
    status = absl::InvalidArgumentError(
        fmt::format("chunk: expected total_bytes = {} bytes in all; received {}",
                    header_.total_bytes(), spool_->size()));
  }
  if (!status.ok()) {
    End(status);
    return;
  }
  if (ok) {
    ReadNext();
    return;
  }
  loading_ = true;
  workers_.Post([this] { Load(); });
}

void UploadCall::Load() {
  const absl::StatusOr<Loaded> loaded = LoadSpooled();
  if (loaded.ok()) {
    for (const std::string& name : loaded->weights) response_->add_weights(name);
    for (const std::string& notice : loaded->notices) response_->add_notices(notice);
    log::Info("upload_done", {{"name", header_.name()}, {"bytes", header_.total_bytes()}});
  } else {
    log::Warn("upload_failed", {{"name", header_.name()}, {"error", MessageOf(loaded.status())}});
  }
  std::lock_guard lock(mutex_);
  End(draining_ && !loaded.ok() ? Draining() : loaded.status());
}

void UploadCall::Drain() {
  std::lock_guard lock(mutex_);
  if (ended_) return;
  if (loading_) {
    draining_ = true;
    cancelled_ = true;
  } else {
    End(Draining());
  }
}

void UploadCall::OnDone() {
  registry_.Remove(this);
  // Whoever called Finish did so with the mutex held.
  { std::lock_guard lock(mutex_); }
  delete this;
}

absl::StatusOr<Loaded> UploadCall::LoadSpooled() {
  NIBBLE_ASSIGN_OR_RETURN(Spool::Mapped mapped, spool_->Map());
  const LoadTarget target{header_.name(), header_.device()};
  if (header_.has_matrix()) {
    NIBBLE_ASSIGN_OR_RETURN(ConstMatrixView matrix,
                            MatrixShape(header_.matrix(), header_.total_bytes()));
    matrix.data = mapped.bytes.data();
    NIBBLE_ASSIGN_OR_RETURN(
        const WeightSpec format,
        ParseFormat(header_.matrix().target(), matrix.rows, matrix.cols, "matrix.target"));
    const QuantizeOptions options{.search_scale = header_.matrix().target().search_scale()};
    return LoadMatrix(service_.store, matrix, {format, options}, target);
  }
  const v1::CheckpointUpload& upload = header_.checkpoint();
  NIBBLE_ASSIGN_OR_RETURN(const checkpoint::OpenOptions options,
                          ParseOpenOptions(upload.fuse(), upload.layers()));
  NIBBLE_ASSIGN_OR_RETURN(
      std::unique_ptr<checkpoint::Checkpoint> opened,
      checkpoint::Checkpoint::FromBytes(mapped.bytes, mapped.keep_alive, upload.config_json(),
                                        header_.name(), options));
  if (upload.has_quantize()) {
    NIBBLE_ASSIGN_OR_RETURN(const checkpoint::QuantizePlan plan,
                            ParseQuantization(upload.quantize(), "checkpoint.quantize"));
    NIBBLE_ASSIGN_OR_RETURN(opened, checkpoint::QuantizeOnLoad(std::move(opened), plan));
  }
  return LoadCheckpoint(
      service_.store, *opened, target, [](const LoadProgress&) {}, cancelled_);
}

void UploadCall::End(const absl::Status& status) {
  ended_ = true;
  meter_.Finished(status);
  spool_.reset();
  service_.uploads.Give(std::exchange(announced_bytes_, 0));
  stall_.ForReader();
  Finish(ToGrpcStatus(status));
}

}  // namespace nibble::server
