// The order in which inputs of an act-order weight are stored, so that its groups lie as in any
// other weight.
#ifndef NIBBLE_KERNELS_CORE_COLUMN_ORDER_H_
#define NIBBLE_KERNELS_CORE_COLUMN_ORDER_H_

#include <cstdint>
#include <vector>

#include "nibble/weight.h"

namespace nibble::core {

// [2K]: the inputs sorted by group, in their own order within each, then the place that each input
// has there. Group g is places [g * group_size, (g + 1) * group_size), the last one up to K. Empty
// where a group has more or fewer inputs than that. `weight` is valid, with a group_index.
std::vector<int32_t> ColumnOrder(const CanonicalWeight& weight);

}  // namespace nibble::core

#endif  // NIBBLE_KERNELS_CORE_COLUMN_ORDER_H_
