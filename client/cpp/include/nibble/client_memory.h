// Memory that this process and a server on the same host both map, so that tensors travel by their
// place in it and not by their bytes.
//
//   auto memory = client->AttachMemory(x_bytes + y_bytes);  // nibbled --allow-shared-memory
//   std::memcpy((*memory)->bytes().data(), x, x_bytes);
//   nibble::v1::MatmulRequest request;
//   request.set_weight("m/model.layers.0.mlp.down_proj");
//   *request.mutable_x() = *(*memory)->TensorAt(0, {rows, k}, nibble::v1::DTYPE_BF16);
//   *request.mutable_y_memory() = *(*memory)->Slice(x_bytes, y_bytes);
//   auto reply = client->Matmul(request);
//   auto y = (*memory)->BytesOf(reply->y());
//
// The server reads x and writes y between request and reply; leave both alone meanwhile.
#ifndef NIBBLE_CLIENT_MEMORY_H_
#define NIBBLE_CLIENT_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "absl/status/statusor.h"
#include "nibble/v1/linear.pb.h"

namespace nibble::client {

// Attached and mapped for as long as this lives. Destroy it when no request that names it is in
// flight. A server that drains, or goes away, detaches it: requests then answer kNotFound, and
// another has to be attached. The methods may be called from any number of threads at once.
class SharedMemory {
 public:
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  virtual ~SharedMemory() = default;

  // At least as many as were asked for, zero at first.
  virtual std::span<std::byte> bytes() const = 0;

  // Bytes [offset, offset + length), for the y_memory of a request. kInvalidArgument where they are
  // not all here.
  virtual absl::StatusOr<v1::SharedSlice> Slice(uint64_t offset, uint64_t length) const = 0;
  // A tensor whose bytes lie at `offset`. kInvalidArgument for a shape or type that is none, or
  // where the bytes are not all here.
  virtual absl::StatusOr<v1::Tensor> TensorAt(uint64_t offset, std::span<const int64_t> shape,
                                              v1::DType dtype) const = 0;
  absl::StatusOr<v1::Tensor> TensorAt(uint64_t offset, std::initializer_list<int64_t> shape,
                                      v1::DType dtype) const {
    return TensorAt(offset, std::span<const int64_t>(shape.begin(), shape.size()), dtype);
  }
  // Where the bytes of such a tensor lie, of a reply too. kInvalidArgument for one that is
  // elsewhere.
  virtual absl::StatusOr<std::span<std::byte>> BytesOf(const v1::Tensor& tensor) const = 0;

 protected:
  SharedMemory() = default;
};

}  // namespace nibble::client

#endif  // NIBBLE_CLIENT_MEMORY_H_
