#include "server/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "fmt/format.h"

namespace nibble::checkpoint {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

absl::Status SystemError(const std::string& path, std::string_view what, int error) {
  const std::string message = fmt::format("{}: {}: {}", path, what, std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InvalidArgumentError(message);
  }
}

struct sigaction g_previous;

}  // namespace

// What the signal handler may look at: atomics that are never freed.
struct MappedFile::Slot {
  std::atomic<uintptr_t> begin{0};  // 0: free
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> damaged{false};

  // Whether `address` lies in this slot's mapping. That of the address that is being read stays as
  // it is meanwhile; others may change.
  bool Holds(uintptr_t address) const {
    const uintptr_t first = begin.load();
    const uintptr_t last = end.load();
    return first != 0 && first <= address && address < last && begin.load() == first;
  }
};

struct MappedFile::Table {
  std::array<Slot, 256> slots;
  std::atomic<Table*> next{nullptr};

  static Table& First() {
    static Table* const first = new Table;
    return *first;
  }

  static Slot* Take(uintptr_t begin, uintptr_t end) {
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    for (Table* table = &First();; table = table->next.load()) {
      for (Slot& slot : table->slots) {
        if (slot.begin.load() != 0) continue;
        slot.damaged.store(false);
        slot.end.store(end);
        slot.begin.store(begin);
        return &slot;
      }
      if (table->next.load() == nullptr) table->next.store(new Table);
    }
  }
};

// Async-signal-safe: atomics and system calls alone.
void MappedFile::OnBusError(int signal, siginfo_t* info, void*) {
  const int saved_errno = errno;
  const auto page_bytes = static_cast<uintptr_t>(getpagesize());
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  // Sent by the kernel for a read, not by a process.
  if (info->si_code > 0) {
    for (Table* table = &Table::First(); table != nullptr; table = table->next.load()) {
      for (Slot& slot : table->slots) {
        if (!slot.Holds(address)) continue;
        // To the end of the file: what follows a cut is missing too, and a mapping for each page
        // could pass the limit on their number.
        const uintptr_t page = address / page_bytes * page_bytes;
        slot.damaged.store(true);
        if (mmap(reinterpret_cast<void*>(page), slot.end.load() - page, PROT_READ,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) {
          errno = saved_errno;
          return;
        }
      }
    }
  }
  // The read is repeated under the handler that was there before.
  sigaction(SIGBUS, &g_previous, nullptr);
  if (info->si_code <= 0) raise(signal);
  errno = saved_errno;
}

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path,
                                                                   size_t min_bytes) {
  static const bool handled = [] {
    Table::First();
    struct sigaction action {};
    action.sa_sigaction = &OnBusError;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, &g_previous) == 0;
  }();
  if (!handled) return absl::InternalError(fmt::format("{}: cannot handle SIGBUS", path));
  // Non-blocking, so that a named pipe is refused below and not waited for.
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return SystemError(path, "cannot open", errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return SystemError(path, "cannot stat", errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(fmt::format("{}: not a regular file", path));
  }
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0 || size < min_bytes) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} bytes, expected at least {}", path, size, min_bytes));
  }
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) return SystemError(path, "cannot map", errno);
  const auto begin = reinterpret_cast<uintptr_t>(address);
  Slot* const slot = Table::Take(begin, begin + size);
  return std::shared_ptr<const MappedFile>(
      new MappedFile(path, {static_cast<const std::byte*>(address), size}, slot));
}

MappedFile::~MappedFile() {
  slot_->begin.store(0);
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::Populate(std::span<const std::byte> part) const {
#ifdef MADV_POPULATE_READ
  const auto page_bytes = static_cast<uintptr_t>(getpagesize());
  const auto begin = reinterpret_cast<uintptr_t>(part.data());
  const uintptr_t first = begin / page_bytes * page_bytes;
  // An older system refuses, and so does a file that was cut short: then a read is what it was.
  madvise(reinterpret_cast<void*>(first), begin + part.size() - first, MADV_POPULATE_READ);
#else
  static_cast<void>(part);
#endif
}

void MappedFile::Release(std::span<const std::byte> part) const {
  const auto page_bytes = static_cast<uintptr_t>(getpagesize());
  const auto begin = reinterpret_cast<uintptr_t>(part.data());
  const uintptr_t first = (begin + page_bytes - 1) / page_bytes * page_bytes;
  const uintptr_t last = (begin + part.size()) / page_bytes * page_bytes;
  if (first >= last) return;
  // A mapping that stands in for missing pages loses nothing but zeros.
  madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

bool MappedFile::intact() const { return !slot_->damaged.load(); }

absl::Status MappedFile::CheckIntact() const {
  if (intact()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{}: the file was cut short, or could not be read, while it was loaded", path_));
}

}  // namespace nibble::checkpoint
