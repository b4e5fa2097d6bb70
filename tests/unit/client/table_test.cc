#include "client/cpp/cli/table.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "client/cpp/cli/bench.h"
#include "client/cpp/cli/session.h"

namespace nibble::cli {
namespace {

TEST(TableTest, ColumnsAlignAndLinesHaveNoTrailingSpaces) {
  Table table({"<NAME", ">N", "<X"});
  table.AddRow({"a", "1000", ""});
  table.AddRow({"longer", "2", "z"});
  EXPECT_EQ(table.ToString(),
            "NAME       N  X\n"
            "a       1000\n"
            "longer     2  z\n");
  EXPECT_EQ(FormatPairs({{"a", "1"}, {"long name", "2"}}), "a          1\nlong name  2\n");
}

TEST(TableTest, Sizes) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(FormatBytes(int64_t{256} << 20), "256.0 MiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::max()), "8.0 EiB");
  EXPECT_EQ(FormatMicros(850), "850 us");
  EXPECT_EQ(FormatMicros(12345), "12.3 ms");
  EXPECT_EQ(FormatMicros(4.56e6), "4.56 s");
}

TEST(TableTest, FormatsInWords) {
  v1::FormatSpec format;
  format.set_format(v1::WEIGHT_FORMAT_INT4);
  format.set_group_size(-1);
  format.set_zero_points(true);
  format.set_act_order(true);
  EXPECT_EQ(FormatText(format), "int4 group all zero-points act-order");
  format.set_format(v1::WEIGHT_FORMAT_FP8);
  format.set_scale_layout(v1::SCALE_LAYOUT_BLOCK);
  EXPECT_EQ(FormatText(format), "fp8 block");
  EXPECT_EQ(FlagName(v1::DTYPE_UNSPECIFIED), "unspecified");
}

TEST(SessionTest, ErrorsStayOnOneLine) {
  EXPECT_EQ(ErrorLine("CODE", "a\r\nb\nc"), "nibble: CODE: a; b; c");
}

TEST(SessionTest, ProgressRewritesItsLineOnATerminalAlone) {
  const auto shown = [](bool terminal) {
    std::ostringstream out;
    std::ostringstream err;
    {
      const Io io{out, err, terminal};
      Progress progress(io, "load");
      progress.Update(0, 1024, "");
      progress.Update(1, 1024, "");  // less than a tenth more
      progress.Update(1024, 1024, "layer");
    }
    EXPECT_EQ(out.str(), "");
    return err.str();
  };
  EXPECT_EQ(shown(false), "load   0 %  0 B of 1.0 KiB\nload 100 %  1.0 KiB of 1.0 KiB  layer\n");
  EXPECT_EQ(shown(true),
            "\r\033[Kload   0 %  0 B of 1.0 KiB"
            "\r\033[Kload 100 %  1.0 KiB of 1.0 KiB  layer\n");
}

TEST(BenchResultTest, PercentilesAreNearestRanks) {
  BenchResult result;
  EXPECT_EQ(result.Percentile(0.5), 0u);
  for (uint32_t i = 1; i <= 100; ++i) result.latencies_us.push_back(i);
  EXPECT_EQ(result.Percentile(0.5), 50u);
  EXPECT_EQ(result.Percentile(0.99), 99u);
  EXPECT_EQ(result.Percentile(1.0), 100u);
  EXPECT_EQ(result.Percentile(0.0), 1u);
}

}  // namespace
}  // namespace nibble::cli
