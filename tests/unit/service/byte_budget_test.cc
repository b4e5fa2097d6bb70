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

}  // namespace
}  // namespace nibble::server
