#include "server/service/byte_budget.h"

#include <gtest/gtest.h>

namespace nibble::server {
namespace {

TEST(ByteBudget, GivesNoMoreThanItsLimit) {
  ByteBudget budget(10);
  EXPECT_TRUE(budget.Take(10));
  EXPECT_TRUE(budget.Take(0));
  EXPECT_FALSE(budget.Take(1));
  EXPECT_FALSE(budget.Take(UINT64_MAX));
  budget.Give(4);
  EXPECT_FALSE(budget.Take(5));
  EXPECT_TRUE(budget.Take(4));
}

TEST(ByteBudget, OneCallerHoldsHalfAtMost) {
  ByteBudget budget(10);
  EXPECT_FALSE(budget.TakeFor(1, 6));
  EXPECT_TRUE(budget.TakeFor(1, 4));
  EXPECT_FALSE(budget.TakeFor(1, 2));
  EXPECT_TRUE(budget.TakeFor(1, 1));
  EXPECT_TRUE(budget.TakeFor(2, 3));
  EXPECT_FALSE(budget.TakeFor(3, 3));
  budget.GiveFrom(1, 5);
  EXPECT_TRUE(budget.TakeFor(3, 3));
  EXPECT_TRUE(budget.TakeFor(1, 4));
  EXPECT_FALSE(budget.TakeFor(4, 1));
}

}  // namespace
}  // namespace nibble::server
