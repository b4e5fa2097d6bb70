#include "tests/conformance/backends.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string_view>

#include "nibble/cuda_module.h"

namespace nibble::conformance {
namespace {

StatusOr<std::vector<std::unique_ptr<Device>>> CreateCpu(int threads) {
  CpuOptions options;
  options.devices = 2;
  options.threads = threads;
  options.memory_bytes = uint64_t{256} << 20;
  options.measure_bandwidth = false;
  return CreateCpuDevices(options);
}

Backend Cpu(std::string name, StatusOr<std::vector<std::unique_ptr<Device>>> (*create)()) {
  Backend backend;
  backend.name = std::move(name);
  backend.create = create;
  backend.batch_invariant = true;
  return backend;
}

// Decoded weights, or their codes, are rounded to 16 bits for the tensor cores.
Backend Cuda() {
  Backend backend;
  backend.name = "cuda";
  backend.graphs = true;
  backend.create = [] { return OpenCudaDevices(); };
  backend.error_model.eps_w = testing::kEpsWeightBF16;
  backend.rsqrt_ulps = 16;
  backend.silu_ulps = 4;
  return backend;
}

}  // namespace

std::vector<Backend> AllBackends() {
  // What runs is what was asked for: a backend that cannot be opened ends the tests.
  const char* named = std::getenv("NIBBLE_TEST_BACKEND");
  const std::string_view wanted = named == nullptr ? "cpu" : named;
  if (wanted == "cuda") return {Cuda()};
  if (wanted == "cpu") {
    return {Cpu("cpu_1_thread", [] { return CreateCpu(1); }),
            Cpu("cpu_3_threads", [] { return CreateCpu(3); })};
  }
  std::fprintf(stderr, "NIBBLE_TEST_BACKEND: expected cpu or cuda; received '%s'\n", named);
  std::exit(1);
}

const std::vector<std::unique_ptr<Device>>& DevicesOf(const Backend& backend) {
  static auto* devices_of = new std::map<std::string, std::vector<std::unique_ptr<Device>>>;
  const auto found = devices_of->find(backend.name);
  if (found != devices_of->end()) return found->second;
  auto created = backend.create();
  if (!created.ok()) {
    std::fprintf(stderr, "%s: %s\n", backend.name.c_str(), created.status().ToString().c_str());
    std::exit(1);
  }
  return devices_of->emplace(backend.name, std::move(created).value()).first->second;
}

}  // namespace nibble::conformance
