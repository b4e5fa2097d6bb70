#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "server/checkpoint/quoted.h"
#include "server/checkpoint/safetensors.h"
#include "server/checkpoint/safetensors_layout.h"
#include "server/checkpoint/safetensors_writer.h"

namespace nibble::checkpoint {
namespace {

std::vector<TensorDeclaration> Declarations(const std::vector<TensorToWrite>& tensors) {
  std::vector<TensorDeclaration> declared;
  for (const TensorToWrite& tensor : tensors) {
    declared.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  return declared;
}

absl::StatusOr<SafetensorsLayout> Plan(const std::vector<TensorToWrite>& tensors,
                                       const std::map<std::string, std::string>& metadata) {
  absl::StatusOr<SafetensorsLayout> layout = PlanSafetensors(Declarations(tensors), metadata);
  if (!layout.ok()) return layout;
  for (const SafetensorsLayout::Place& place : layout->places) {
    const TensorToWrite& tensor = tensors[place.index];
    if (tensor.data.size() != place.bytes) {
      return absl::InvalidArgumentError(fmt::format(
          "tensor {}: {} [{}] takes {} bytes, received {}", Quoted(tensor.name), tensor.dtype,
          fmt::join(tensor.shape, ", "), place.bytes, tensor.data.size()));
    }
  }
  return layout;
}

absl::Status WriteTo(const std::string& path, const std::vector<TensorToWrite>& tensors,
                     const std::map<std::string, std::string>& metadata) {
  auto writer = SafetensorsWriter::Create(path, Declarations(tensors), metadata);
  if (!writer.ok()) return writer.status();
  for (const TensorToWrite& tensor : tensors) {
    if (absl::Status status = (*writer)->Write(tensor.name, tensor.data); !status.ok()) {
      return status;
    }
  }
  return (*writer)->Finish();
}

}  // namespace

absl::StatusOr<std::string> SerializeSafetensors(
    const std::vector<TensorToWrite>& tensors, const std::map<std::string, std::string>& metadata) {
  absl::StatusOr<SafetensorsLayout> layout = Plan(tensors, metadata);
  if (!layout.ok()) return layout.status();
  std::string bytes = std::move(layout->prologue);
  for (const SafetensorsLayout::Place& place : layout->places) {
    const auto& data = tensors[place.index].data;
    bytes.append(reinterpret_cast<const char*>(data.data()), data.size());
  }
  return bytes;
}

absl::Status WriteSafetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  if (const auto layout = Plan(tensors, metadata); !layout.ok()) return layout.status();
  static std::atomic<unsigned> counter{0};
  const std::string temporary =
      fmt::format("{}.{}.{}.tmp", path, getpid(), counter.fetch_add(1, std::memory_order_relaxed));
  absl::Status status = WriteTo(temporary, tensors, metadata);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = absl::InvalidArgumentError(
        fmt::format("{}: cannot rename: {}", path, std::strerror(errno)));
    unlink(temporary.c_str());
  }
  return status;
}

}  // namespace nibble::checkpoint
