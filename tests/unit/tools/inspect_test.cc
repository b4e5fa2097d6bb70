#include "server/tools/inspect.h"

#include <gtest/gtest.h>

namespace nibble::tools {
namespace {

std::string Golden(const std::string& name) {
  return std::string(NIBBLE_SOURCE_DIR) + "/tests/golden/" + name;
}

TEST(InspectTest, ALayerIsDescribedWithoutAServer) {
  const auto inspection = Inspect(Golden("gptq_falcon3_1b_int4"));
  ASSERT_TRUE(inspection.ok()) << inspection.status();
  ASSERT_EQ(inspection->layers.size(), 1u);
  const InspectedLayer& layer = inspection->layers[0];
  EXPECT_EQ(layer.name, "model.layers.0.mlp.down_proj");
  EXPECT_EQ(layer.dialect, "gptq");
  EXPECT_EQ(layer.format, "int4 256x256 group 128 sym");
  EXPECT_EQ(layer.n, 256);
  EXPECT_EQ(layer.k, 256);
  EXPECT_EQ(layer.bytes, 256 * 128 + 2 * 256 * 2);
  EXPECT_EQ(layer.refusal, "");
  EXPECT_TRUE(inspection->notices.empty());
}

TEST(InspectTest, ADirectoryThatIsNoneIsAnError) {
  EXPECT_EQ(Inspect(Golden("none")).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace nibble::tools
