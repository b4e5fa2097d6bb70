// The backends that the conformance suite runs on, and what each one promises beyond the contract
// of nibble/backend.h. A new backend adds an entry to AllBackends().
#ifndef NIBBLE_TESTS_CONFORMANCE_BACKENDS_H_
#define NIBBLE_TESTS_CONFORMANCE_BACKENDS_H_

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "nibble/backend.h"
#include "tests/support/tolerance.h"

namespace nibble::conformance {

struct Backend {
  std::string name;
  // At least two devices where the machine has them.
  StatusOr<std::vector<std::unique_ptr<Device>>> (*create)() = nullptr;
  // A row's bits do not depend on M. Otherwise only on M, never on the other rows.
  bool batch_invariant = false;
  bool graphs = false;  // streams can record
  testing::MatmulErrorModel error_model;
  // How far rsqrt(mean(h^2) + epsilon) and silu(g) may lie from the host's value, in units in the
  // last place of binary32. 0: the sum of squares is taken in 16 lanes and the rest rounded step by
  // step, as reference.h does it.
  int rsqrt_ulps = 0;
  int silu_ulps = 0;
};

// The CPU backends, or with NIBBLE_TEST_BACKEND=cuda the CUDA backend alone.
std::vector<Backend> AllBackends();

inline std::ostream& operator<<(std::ostream& out, const Backend& backend) {
  return out << backend.name;
}

// The backend's devices, created once in a process.
const std::vector<std::unique_ptr<Device>>& DevicesOf(const Backend& backend);

}  // namespace nibble::conformance

#endif  // NIBBLE_TESTS_CONFORMANCE_BACKENDS_H_
