#include "server/checkpoint/safetensors.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "server/checkpoint/container_dtype.h"
#include "server/checkpoint/quoted.h"
#include "server/checkpoint/safetensors_header.h"

namespace nibble::checkpoint {
namespace {

constexpr size_t kLengthBytes = 8;  // of the header's length, which begins a file

absl::Status Annotated(std::string_view label, std::string_view message) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", label, message));
}

std::string_view Message(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

// The entries in file order must tile the data buffer exactly.
absl::Status CheckLayout(const Header& header, uint64_t data_bytes) {
  using Item = std::pair<const std::string, HeaderEntry>;
  std::vector<const Item*> items;
  items.reserve(header.tensors.size());
  for (const Item& item : header.tensors) items.push_back(&item);
  // By the pair: an empty tensor may begin where another one does.
  std::sort(items.begin(), items.end(), [](const Item* a, const Item* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  uint64_t previous_end = 0;
  for (const Item* item : items) {
    if (item->second.begin != previous_end) {
      return absl::InvalidArgumentError(
          fmt::format("tensor {} begins at byte {} where {} was expected ({})", Quoted(item->first),
                      item->second.begin, previous_end,
                      item->second.begin > previous_end ? "hole" : "overlap"));
    }
    previous_end = item->second.end;
  }
  if (previous_end != data_bytes) {
    return absl::InvalidArgumentError(
        fmt::format("tensors take {} bytes after the header, the file has {} ({})", previous_end,
                    data_bytes, previous_end > data_bytes ? "truncated" : "trailing bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t TensorEntry::elements() const {
  int64_t count = 1;
  for (int64_t dim : shape) count *= dim;  // checked for overflow by Parse
  return count;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Parse(std::span<const std::byte> bytes,
                                                       std::shared_ptr<const void> keep_alive,
                                                       std::string_view label) try {
  if (bytes.size() < kLengthBytes) {
    return Annotated(label,
                     fmt::format("{} bytes, expected at least {}", bytes.size(), kLengthBytes));
  }
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) {
    header_bytes = header_bytes << 8 | static_cast<uint64_t>(bytes[static_cast<size_t>(i)]);
  }
  if (header_bytes > kMaxHeaderBytes) {
    return Annotated(label, fmt::format("header length {} exceeds the limit of {} bytes",
                                        header_bytes, kMaxHeaderBytes));
  }
  if (header_bytes > bytes.size() - 8) {
    return Annotated(label, fmt::format("header length {} exceeds the file's {} bytes",
                                        header_bytes, bytes.size()));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, header_bytes);
  const std::span<const std::byte> data = bytes.subspan(8 + header_bytes);

  Header header;
  if (absl::Status status = ReadHeader(text, &header); !status.ok()) {
    return Annotated(label, Message(status));
  }
  for (const auto& [name, entry] : header.tensors) {
    const absl::StatusOr<int64_t> expected = TensorBytes(entry.dtype, entry.shape);
    if (!expected.ok()) {
      return Annotated(label,
                       fmt::format("tensor {}: {}", Quoted(name), Message(expected.status())));
    }
    if (entry.end < entry.begin) {
      return Annotated(label, fmt::format("tensor {}: data_offsets end {} lies before begin {}",
                                          Quoted(name), entry.end, entry.begin));
    }
    if (entry.end - entry.begin != static_cast<uint64_t>(*expected)) {
      return Annotated(
          label, fmt::format("tensor {}: {} [{}] takes {} bytes, data_offsets [{}, {}] hold {}",
                             Quoted(name), entry.dtype, fmt::join(entry.shape, ", "), *expected,
                             entry.begin, entry.end, entry.end - entry.begin));
    }
  }
  if (absl::Status status = CheckLayout(header, data.size()); !status.ok()) {
    return Annotated(label, Message(status));
  }

  SafetensorsFile file;
  file.metadata_ = std::move(header.metadata);
  for (auto& [name, entry] : header.tensors) {
    file.tensors_.emplace_hint(
        file.tensors_.end(), name,
        TensorEntry{std::move(entry.dtype), std::move(entry.shape),
                    data.subspan(entry.begin, entry.end - entry.begin), keep_alive});
  }
  return file;
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError(fmt::format("{}: no memory for its header", label));
} catch (const std::exception& e) {
  return Annotated(label, e.what());
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  absl::StatusOr<std::shared_ptr<const MappedFile>> mapped = MappedFile::Open(path, kLengthBytes);
  if (!mapped.ok()) return mapped.status();
  absl::StatusOr<SafetensorsFile> file = Parse((*mapped)->bytes(), *mapped, path);
  if (absl::Status intact = (*mapped)->CheckIntact(); !intact.ok()) return intact;
  if (file.ok()) {
    for (auto& [name, entry] : file->tensors_) entry.file = mapped->get();
  }
  return file;
}

const TensorEntry* SafetensorsFile::Find(std::string_view name) const {
  const auto it = tensors_.find(std::string(name));
  return it == tensors_.end() ? nullptr : &it->second;
}

}  // namespace nibble::checkpoint
