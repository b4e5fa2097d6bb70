// An upload: messages of the stream, each behind its length of 16 bits. The header says what the
// chunks are, a matrix to be quantized or a checkpoint, and both are decoded and quantized.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "nibble/numeric.h"
#include "nibble/quantize.h"
#include "nibble/v1/weights.pb.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/quantized.h"
#include "server/service/format_codec.h"
#include "server/service/tensor_codec.h"
#include "tests/fuzz/check_layers.h"
#include "tests/fuzz/memory_limit.h"
#include "tests/fuzz/require.h"

namespace nibble::fuzz {
namespace {

struct Upload {
  v1::UploadHeader header;
  std::string bytes;
};

// The messages as the service takes them: one header, then chunks. False for another stream.
bool ReadStream(std::string_view stream, Upload* upload) {
  bool has_header = false;
  while (stream.size() >= 2) {
    const size_t announced = static_cast<unsigned char>(stream[0]) |
                             static_cast<size_t>(static_cast<unsigned char>(stream[1])) << 8;
    stream.remove_prefix(2);
    const size_t size = std::min(announced, stream.size());
    v1::UploadRequest part;
    if (!part.ParseFromArray(stream.data(), static_cast<int>(size))) return false;
    stream.remove_prefix(size);
    if (part.has_header() == has_header) return false;
    if (part.has_header()) {
      upload->header = part.header();
      has_header = true;
    } else {
      upload->bytes += part.chunk();
    }
  }
  return has_header;
}

void QuantizeMatrix(const Upload& upload) {
  const v1::MatrixUpload& matrix = upload.header.matrix();
  const auto dtype = server::ParseDType(matrix.dtype(), DType::kBF16,
                                        {DType::kF32, DType::kF16, DType::kBF16}, "matrix.dtype");
  if (!dtype.ok() || matrix.shape_size() != 2) return;
  const int64_t n = matrix.shape(0);
  const int64_t k = matrix.shape(1);
  const auto target = server::ParseFormat(matrix.target(), n, k, "matrix.target");
  const auto elements = CheckedMul(n, k);
  if (!target.ok() || !elements ||
      static_cast<uint64_t>(*elements) != upload.bytes.size() / DTypeBytes(*dtype)) {
    return;
  }
  const QuantizeOptions options{.threads = 1, .search_scale = matrix.target().search_scale()};
  const auto weight = Quantize(MakeConstView(upload.bytes.data(), *dtype, n, k), *target, options);
  if (weight.ok()) Require(ValidateWeight(*weight).ok(), "what was quantized is valid");
}

void OpenCheckpoint(const Upload& upload) {
  const v1::CheckpointUpload& header = upload.header.checkpoint();
  auto opened = checkpoint::Checkpoint::FromBytes(std::as_bytes(std::span(upload.bytes)), nullptr,
                                                  header.config_json(), "upload");
  if (!opened.ok()) return;
  if (header.has_quantize()) {
    const auto plan = server::ParseQuantization(header.quantize(), "quantize");
    if (!plan.ok()) return;
    opened = checkpoint::QuantizeOnLoad(*std::move(opened), *plan);
    if (!opened.ok()) return;
  }
  CheckLayers(**opened, static_cast<int64_t>(upload.bytes.size()));
}

}  // namespace
}  // namespace nibble::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble::fuzz;
  static const google::protobuf::LogSilencer silencer;
  Upload upload;
  const MemoryLimit limit(static_cast<int64_t>(size));
  if (!ReadStream({reinterpret_cast<const char*>(data), size}, &upload)) return 0;
  if (upload.header.has_matrix()) QuantizeMatrix(upload);
  if (upload.header.has_checkpoint()) OpenCheckpoint(upload);
  return 0;
}
