#include "kernels/core/column_order.h"

#include <algorithm>
#include <cstring>

namespace nibble::core {

std::vector<int32_t> ColumnOrder(const CanonicalWeight& weight) {
  const int64_t k_count = weight.spec.k;
  const int64_t group_size = std::min(weight.spec.group_size, k_count);
  std::vector<int32_t> filled(static_cast<size_t>(CeilDiv(k_count, group_size)));
  std::vector<int32_t> order(static_cast<size_t>(2 * k_count));
  for (int64_t k = 0; k < k_count; ++k) {
    int32_t group = 0;
    std::memcpy(&group, weight.group_index.data() + k * int64_t{sizeof(group)}, sizeof(group));
    const int64_t begin = group * group_size;
    int32_t& taken = filled[static_cast<size_t>(group)];
    if (taken == std::min(group_size, k_count - begin)) return {};
    const int64_t place = begin + taken++;
    order[static_cast<size_t>(place)] = static_cast<int32_t>(k);
    order[static_cast<size_t>(k_count + k)] = static_cast<int32_t>(place);
  }
  return order;
}

}  // namespace nibble::core
