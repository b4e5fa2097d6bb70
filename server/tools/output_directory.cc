#include "server/tools/output_directory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "fmt/format.h"
#include "nibble/status.h"

namespace nibble::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 9> kWeightEndings = {
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".index.json"};

bool IsWeights(std::string_view name) {
  return std::any_of(kWeightEndings.begin(), kWeightEndings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

absl::Status Unavailable(const fs::path& path, std::string_view what,
                         const std::error_code& error) {
  return absl::UnavailableError(
      fmt::format("{}: cannot {}: {}", path.string(), what, error.message()));
}

bool IsReplaceable(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return false;
  bool any = false;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") return true;
    any = true;
  }
  return !any && !error;
}

// True where `inner` is `outer` or lies below it.
bool Holds(const fs::path& outer, const fs::path& inner) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace

absl::StatusOr<OutputDirectory> OutputDirectory::Create(const std::string& path,
                                                        const std::string& input, bool force) {
  std::error_code error;
  // Without a slash at the end, which would hide the name.
  fs::path place = fs::absolute(path, error).lexically_normal();
  if (!place.has_filename()) place = place.parent_path();
  if (error || path.empty() || !place.has_filename()) {
    return absl::InvalidArgumentError(
        fmt::format("output: expected the name of a directory; received '{}'", path));
  }
  const fs::path real_input = fs::weakly_canonical(input, error);
  if (Holds(fs::weakly_canonical(place, error), real_input)) {
    return absl::InvalidArgumentError(
        fmt::format("output: expected another directory than the input's; received '{}'", path));
  }
  const fs::file_status there = fs::symlink_status(place, error);
  if (fs::exists(there)) {
    if (!force) {
      return absl::AlreadyExistsError(
          fmt::format("output: '{}' is there already; --force replaces a checkpoint", path));
    }
    if (!IsReplaceable(place)) {
      return absl::AlreadyExistsError(
          fmt::format("output: '{}' is no directory of a checkpoint, it is not replaced", path));
    }
  }
  fs::create_directories(place.parent_path(), error);
  // A name that no other run has, one that was killed included.
  std::string filling = place.string() + ".partial-XXXXXX";
  if (mkdtemp(filling.data()) == nullptr) {
    return Unavailable(filling, "create", std::error_code(errno, std::generic_category()));
  }
  fs::permissions(filling,
                  fs::perms::others_read | fs::perms::others_exec | fs::perms::group_read |
                      fs::perms::group_exec | fs::perms::owner_all,
                  error);
  return OutputDirectory(std::move(place), fs::path(filling));
}

OutputDirectory::OutputDirectory(OutputDirectory&& other) noexcept
    : path_(std::move(other.path_)), filling_(std::exchange(other.filling_, {})) {}

OutputDirectory::~OutputDirectory() {
  if (filling_.empty()) return;
  std::error_code error;
  fs::remove_all(filling_, error);
}

absl::Status OutputDirectory::WriteText(std::string_view name, std::string_view text) const {
  std::ofstream file(filling_ / name, std::ios::binary);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(fmt::format("{}: cannot write", FileName(name)));
}

absl::StatusOr<std::vector<std::string>> OutputDirectory::CopyOthers(
    const std::string& input, std::string_view except) const {
  std::vector<std::string> left_out;
  std::error_code error;
  for (fs::directory_iterator it(input, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code kind;
    if (name == except) continue;
    if (!it->is_regular_file(kind) || name.starts_with('.') || IsWeights(name)) {
      if (!name.ends_with(".safetensors") && !name.ends_with(".safetensors.index.json")) {
        left_out.push_back(name);
      }
      continue;
    }
    std::error_code copied;
    if (!fs::copy_file(it->path(), filling_ / name, copied)) {
      return Unavailable(it->path(), "copy", copied);
    }
  }
  if (error) return Unavailable(input, "list", error);
  std::sort(left_out.begin(), left_out.end());
  return left_out;
}

absl::Status OutputDirectory::Publish() {
  std::error_code error;
  fs::path old = path_;
  old += fmt::format(".old-{}", getpid());
  const bool replaces = fs::exists(fs::symlink_status(path_, error));
  if (replaces) {
    fs::rename(path_, old, error);
    if (error) return Unavailable(path_, "move away", error);
  }
  fs::rename(filling_, path_, error);
  if (error) {
    const absl::Status status = Unavailable(path_, "create", error);
    if (replaces) fs::rename(old, path_, error);
    return status;
  }
  filling_.clear();
  if (replaces) fs::remove_all(old, error);
  return absl::OkStatus();
}

}  // namespace nibble::tools
