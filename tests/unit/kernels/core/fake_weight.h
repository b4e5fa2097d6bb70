// A resident weight without bytes, for checks that read only its spec.
#ifndef NIBBLE_TESTS_UNIT_KERNELS_CORE_FAKE_WEIGHT_H_
#define NIBBLE_TESTS_UNIT_KERNELS_CORE_FAKE_WEIGHT_H_

#include "nibble/weight.h"

namespace nibble {

class FakeWeight : public DeviceWeight {
 public:
  explicit FakeWeight(const WeightSpec& spec) : DeviceWeight(spec, 0, 1.0f) {}
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_UNIT_KERNELS_CORE_FAKE_WEIGHT_H_
