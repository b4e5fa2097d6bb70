#include <algorithm>
#include <fstream>
#include <limits>

#include "client/cpp/src/impl.h"

namespace nibble::client {
namespace {

// Field number, length and message framing of a chunk.
constexpr int64_t kChunkOverheadBytes = 64;

ReadChunk ReadSpan(std::span<const std::byte> bytes) {
  return [bytes, at = size_t{0}](int64_t size, std::string& chunk) mutable {
    chunk.assign(reinterpret_cast<const char*>(bytes.data()) + at, static_cast<size_t>(size));
    at += static_cast<size_t>(size);
    return absl::OkStatus();
  };
}

struct OpenFile {
  ReadChunk read;
  int64_t bytes = 0;
};

absl::StatusOr<OpenFile> ReadFile(const std::string& path) {
  auto file = std::make_shared<std::ifstream>(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = *file ? static_cast<std::streamoff>(file->tellg()) : -1;
  // A directory opens, and its size reads as the largest number there is.
  if (size < 0 || size == std::numeric_limits<std::streamoff>::max()) {
    return absl::InvalidArgumentError("cannot read the file " + path);
  }
  file->seekg(0);
  ReadChunk read = [file, path](int64_t want, std::string& chunk) -> absl::Status {
    chunk.resize(static_cast<size_t>(want));
    file->read(chunk.data(), want);
    if (file->gcount() == want) return absl::OkStatus();
    return absl::DataLossError("the file " + path + " became shorter while it was read");
  };
  return OpenFile{std::move(read), static_cast<int64_t>(size)};
}

v1::UploadHeader HeaderOf(const CheckpointUploadOptions& upload) {
  v1::UploadHeader header;
  header.set_name(upload.name);
  header.set_device(upload.device);
  v1::CheckpointUpload& checkpoint = *header.mutable_checkpoint();
  checkpoint.set_config_json(upload.config_json);
  if (upload.quantize) *checkpoint.mutable_quantize() = *upload.quantize;
  checkpoint.set_fuse(upload.fuse);
  checkpoint.mutable_layers()->Assign(upload.layers.begin(), upload.layers.end());
  return header;
}

// The header of a matrix of which there are `bytes` bytes.
absl::StatusOr<v1::UploadHeader> HeaderOf(const MatrixUploadOptions& upload, int64_t bytes) {
  const int64_t size = DTypeBytes(upload.dtype);
  if (size < 2) {
    return absl::InvalidArgumentError("dtype: expected F32, F16 or BF16, received " +
                                      std::string(DTypeName(upload.dtype)));
  }
  const absl::StatusOr<int64_t> count = ElementCount(upload.shape);
  if (!count.ok()) return count.status();
  if (bytes % size != 0 || bytes / size != *count) {
    return absl::InvalidArgumentError("elements: expected " + std::to_string(*count) + " of " +
                                      std::to_string(size) + " bytes, received " +
                                      std::to_string(bytes) + " bytes");
  }
  v1::UploadHeader header;
  header.set_name(upload.name);
  header.set_device(upload.device);
  v1::MatrixUpload& matrix = *header.mutable_matrix();
  matrix.set_dtype(upload.dtype);
  matrix.mutable_shape()->Add(upload.shape.begin(), upload.shape.end());
  *matrix.mutable_target() = upload.target;
  return header;
}

// Sends header and bytes. `local` is set when reading failed here, and the call was cancelled for
// it.
grpc::Status Send(v1::Weights::Stub& stub, grpc::ClientContext& context,
                  const v1::UploadHeader& header, const ReadChunk& read, int64_t chunk_bytes,
                  const UploadProgress& on_progress, v1::UploadResponse& response,
                  absl::Status& local) {
  auto writer = stub.Upload(&context, &response);
  const int64_t total = header.total_bytes();
  v1::UploadRequest part;
  *part.mutable_header() = header;
  bool open = writer->Write(part);
  for (int64_t done = 0; open && done < total;) {
    const int64_t size = std::min(chunk_bytes, total - done);
    if (local = read(size, *part.mutable_chunk()); !local.ok()) {
      context.TryCancel();
      break;
    }
    // A server that refuses ends the stream early; Finish then has its reason.
    open = writer->Write(part);
    if (!open) break;
    done += size;
    if (on_progress) on_progress(done, total);
  }
  if (open && local.ok()) writer->WritesDone();
  return writer->Finish();
}

}  // namespace

absl::StatusOr<v1::UploadResponse> Client::Impl::Upload(v1::UploadHeader header, int64_t bytes,
                                                        const ReadChunk& read,
                                                        const UploadProgress& on_progress,
                                                        const CallOptions& call) const {
  header.set_total_bytes(bytes);
  const int64_t chunk_bytes =
      std::min(options.upload_chunk_bytes, options.max_message_bytes - kChunkOverheadBytes);
  v1::UploadResponse response;
  absl::Status local;
  const absl::Status status = CallOnce(Plane::kControl, call, [&](grpc::ClientContext& context) {
    return Send(*weights, context, header, read, chunk_bytes, on_progress, response, local);
  });
  if (!local.ok()) return local;
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<v1::UploadResponse> Client::UploadCheckpoint(const CheckpointUploadOptions& upload,
                                                            std::span<const std::byte> bytes,
                                                            const UploadProgress& on_progress,
                                                            const CallOptions& options) {
  return impl_->Upload(HeaderOf(upload), static_cast<int64_t>(bytes.size()), ReadSpan(bytes),
                       on_progress, options);
}

absl::StatusOr<v1::UploadResponse> Client::UploadCheckpointFile(
    const CheckpointUploadOptions& upload, const std::string& path,
    const UploadProgress& on_progress, const CallOptions& options) {
  const absl::StatusOr<OpenFile> file = ReadFile(path);
  if (!file.ok()) return file.status();
  return impl_->Upload(HeaderOf(upload), file->bytes, file->read, on_progress, options);
}

absl::StatusOr<v1::UploadResponse> Client::UploadMatrix(const MatrixUploadOptions& upload,
                                                        std::span<const std::byte> elements,
                                                        const UploadProgress& on_progress,
                                                        const CallOptions& options) {
  const auto bytes = static_cast<int64_t>(elements.size());
  const absl::StatusOr<v1::UploadHeader> header = HeaderOf(upload, bytes);
  if (!header.ok()) return header.status();
  return impl_->Upload(*header, bytes, ReadSpan(elements), on_progress, options);
}

absl::StatusOr<v1::UploadResponse> Client::UploadMatrixFile(const MatrixUploadOptions& upload,
                                                            const std::string& path,
                                                            const UploadProgress& on_progress,
                                                            const CallOptions& options) {
  const absl::StatusOr<OpenFile> file = ReadFile(path);
  if (!file.ok()) return file.status();
  const absl::StatusOr<v1::UploadHeader> header = HeaderOf(upload, file->bytes);
  if (!header.ok()) return header.status();
  return impl_->Upload(*header, file->bytes, file->read, on_progress, options);
}

}  // namespace nibble::client
