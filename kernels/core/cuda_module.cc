#include "nibble/cuda_module.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "fmt/format.h"
#include "kernels/core/cuda_module_abi.h"

namespace nibble {
namespace {

constexpr char kModuleName[] = "libnibble_cuda.so";

// Where the module may be: the one place that was named, or beside the executable.
std::vector<std::filesystem::path> Candidates(const std::string& module_path) {
  if (!module_path.empty()) return {module_path};
  if (const char* named = std::getenv("NIBBLE_CUDA_MODULE"); named != nullptr && *named != '\0') {
    return {named};
  }
  std::error_code error;
  const auto executable = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {kModuleName};
  const std::filesystem::path directory = executable.parent_path();
  return {directory / kModuleName, directory.parent_path() / "lib" / kModuleName,
          directory.parent_path() / "lib" / NIBBLE_LIBRARY_ARCHITECTURE / kModuleName};
}

StatusOr<std::filesystem::path> FindModule(const std::string& module_path) {
  std::string tried;
  for (const std::filesystem::path& candidate : Candidates(module_path)) {
    std::error_code error;
    if (std::filesystem::exists(candidate, error)) return candidate;
    tried += (tried.empty() ? "" : ", ") + candidate.string();
  }
  return absl::FailedPreconditionError(
      fmt::format("CUDA backend: no module; looked for {}", tried));
}

}  // namespace

StatusOr<std::vector<std::unique_ptr<Device>>> OpenCudaDevices(const std::string& module_path) {
  NIBBLE_ASSIGN_OR_RETURN(const std::filesystem::path path, FindModule(module_path));
  // Local: its copy of this library's core stays its own. Never closed: devices live in it.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::FailedPreconditionError(fmt::format("CUDA backend: {}", dlerror()));
  }
  const auto entry =
      reinterpret_cast<core::CudaModuleEntry>(dlsym(handle, core::kCudaModuleSymbol));
  if (entry == nullptr) {
    return absl::FailedPreconditionError(fmt::format("CUDA backend: expected {} in {}; it has none",
                                                     core::kCudaModuleSymbol, path.string()));
  }
  const core::CudaModule* module = entry();
  if (std::string_view(module->abi) != core::kCudaModuleAbi ||
      module->layout != core::CudaModuleLayout()) {
    return absl::FailedPreconditionError(
        fmt::format("CUDA backend: expected a module of '{}'; {} is of '{}'", core::kCudaModuleAbi,
                    path.string(), module->abi));
  }
  return module->open_devices();
}

}  // namespace nibble
