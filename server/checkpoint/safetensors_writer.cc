#include "server/checkpoint/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "server/checkpoint/quoted.h"
#include "server/checkpoint/safetensors_layout.h"

namespace nibble::checkpoint {
namespace {

absl::Status WriteAt(int fd, const std::string& path, uint64_t offset, const void* data,
                     size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = pwrite(fd, at, size, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return absl::UnavailableError(
          fmt::format("{}: cannot write: {}", path, std::strerror(errno)));
    }
    at += written;
    offset += static_cast<uint64_t>(written);
    size -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, const std::vector<TensorDeclaration>& tensors,
    const std::map<std::string, std::string>& metadata) {
  const absl::StatusOr<SafetensorsLayout> layout = PlanSafetensors(tensors, metadata);
  if (!layout.ok()) return layout.status();
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) {
    return absl::InvalidArgumentError(
        fmt::format("{}: cannot create: {}", path, std::strerror(errno)));
  }
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter(path, fd));
  writer->bytes_ = layout->prologue.size();
  for (const SafetensorsLayout::Place& place : layout->places) {
    writer->places_[tensors[place.index].name] = {place.offset, place.bytes, false};
    writer->bytes_ += place.bytes;
  }
  absl::Status status = WriteAt(fd, path, 0, layout->prologue.data(), layout->prologue.size());
  if (!status.ok()) return status;
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) close(fd_);
  if (!finished_) unlink(path_.c_str());
}

absl::Status SafetensorsWriter::Write(std::string_view name, std::span<const std::byte> data) {
  const auto found = places_.find(name);
  if (found == places_.end()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: tensor {} was not declared", path_, Quoted(name)));
  }
  Place& place = found->second;
  if (place.written || data.size() != place.bytes) {
    return absl::InvalidArgumentError(
        fmt::format("{}: tensor {}: expected {} bytes, once; received {}{}", path_, Quoted(name),
                    place.bytes, data.size(), place.written ? ", again" : ""));
  }
  place.written = true;
  return WriteAt(fd_, path_, place.offset, data.data(), data.size());
}

absl::Status SafetensorsWriter::Finish() {
  for (const auto& [name, place] : places_) {
    if (place.written) continue;
    return absl::InvalidArgumentError(
        fmt::format("{}: tensor {} was not given", path_, Quoted(name)));
  }
  if (fsync(fd_) != 0) {
    return absl::UnavailableError(fmt::format("{}: cannot sync: {}", path_, std::strerror(errno)));
  }
  if (close(std::exchange(fd_, -1)) != 0) {
    return absl::UnavailableError(fmt::format("{}: cannot close: {}", path_, std::strerror(errno)));
  }
  finished_ = true;
  return absl::OkStatus();
}

}  // namespace nibble::checkpoint
