// The file of autotuning. What is accepted is written and must read back the same, and choices that
// follow from it are kernels that can run.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "nibble/measured.h"
#include "server/autotune/cache_file.h"
#include "tests/fuzz/memory_limit.h"
#include "tests/fuzz/require.h"

namespace nibble::fuzz {
namespace {

void CheckChoices(const DeviceInfo& device, const MatmulKey& key,
                  const std::vector<MeasuredRows>& rows) {
  const MeasuredMatmul measured = MakeMeasured(key, device, rows);
  int64_t next = 1;
  for (const ChoiceRange& range : measured.ranges) {
    Require(range.m_begin == next && range.m_end >= range.m_begin, "ranges have no gaps");
    const auto candidates = MatmulCandidates(ProblemOf(key, range.m_end), device);
    Require(std::ranges::find(candidates, range.choice.kernel, &Choice::kernel) != candidates.end(),
            "a choice can run");
    next = range.m_end + 1;
  }
  Require(next == (rows.empty() ? 1 : rows.back().m + 1), "ranges reach to the last rows");
}

}  // namespace
}  // namespace nibble::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble::fuzz;
  namespace server = nibble::server;
  const MemoryLimit limit(static_cast<int64_t>(size));
  const auto cache = server::ParseTuningCache({reinterpret_cast<const char*>(data), size});
  if (!cache.ok()) {
    Require(!cache.status().message().empty(), "an error has a message");
    return 0;
  }
  const std::string text = server::WriteTuningCache(*cache);
  const auto again = server::ParseTuningCache(text);
  Require(again.ok(), "a cache that was written can be read");
  Require(server::WriteTuningCache(*again) == text, "a cache that was written reads the same");
  for (const auto& section : cache->devices) {
    nibble::DeviceInfo device;
    device.kind = section.device.kind;
    device.compute_capability = section.device.compute_capability;
    for (const auto& [key, rows] : section.weights) CheckChoices(device, key, rows);
  }
  return 0;
}
