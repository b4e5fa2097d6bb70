#include "kernels/core/column_order.h"

#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> OrderOf(const std::vector<int32_t>& groups, int64_t group_size) {
  CanonicalWeight weight;
  weight.spec.format = Format::kInt4;
  weight.spec.n = 1;
  weight.spec.k = static_cast<int64_t>(groups.size());
  weight.spec.group_size = group_size;
  weight.spec.has_group_index = true;
  const auto bytes = std::as_bytes(std::span(groups));
  weight.group_index = HostBytes(std::vector<std::byte>(bytes.begin(), bytes.end()));
  return ColumnOrder(weight);
}

TEST(ColumnOrder, SortsByGroupAndKeepsTheOrderWithin) {
  EXPECT_THAT(OrderOf({1, 0, 2, 0, 1, 2}, 2), ElementsAre(1, 3, 0, 4, 2, 5, 2, 0, 4, 1, 3, 5));
}

TEST(ColumnOrder, TheLastGroupMayBeShort) {
  EXPECT_THAT(OrderOf({1, 0, 0}, 2), ElementsAre(1, 2, 0, 2, 0, 1));
  EXPECT_THAT(OrderOf({0, 0, 0}, 128), ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST(ColumnOrder, IsEmptyWhereGroupsDifferInSize) {
  EXPECT_THAT(OrderOf({0, 0, 0, 1}, 2), IsEmpty());
  EXPECT_THAT(OrderOf({1, 1, 0}, 2), IsEmpty());  // the short group is not the last
  EXPECT_THAT(OrderOf({1, 1, 1, 1}, 2), IsEmpty());
}

}  // namespace
}  // namespace nibble::core
