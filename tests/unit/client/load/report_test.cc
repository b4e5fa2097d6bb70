#include "client/cpp/load/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cpp/load/options.h"

namespace nibble::load {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunResult Result(int64_t answers, int64_t latency_ns) {
  RunResult result;
  result.seconds = 2.0;
  result.offered_rate = static_cast<double>(answers) / 2.0;
  for (int64_t i = 0; i < answers; ++i) result.total.latency_ns.Record(latency_ns);
  result.total.requests = answers;
  result.arrived = {.answers = answers,
                    .rows = 4 * answers,
                    .request_bytes = 2048 * answers,
                    .reply_bytes = 4096 * answers};
  result.total.kernels["cpu_gemv"] = answers;
  result.total.batch_rows.Record(12);
  result.total.queue_us.Record(30);
  result.total.compute_us.Record(70);
  result.windows = {{1.0, answers / 2, 0, latency_ns}, {1.0, answers / 2, 0, latency_ns}};
  return result;
}

Report MakeReport() {
  Report report;
  Options options;
  options.label = "a, \"quoted\" label";
  options.workload.weights = {"m/a", "m/b"};
  report.parameters = options.ToJson();
  report.layers = {{"m/a", 64, 32, "cpu:0"}};
  Entry entry;
  entry.callers = 4;
  entry.connections = 4;
  entry.threads = 2;
  entry.result = Result(1000, 1'500'000);
  report.entries.push_back(entry);
  return report;
}

TEST(LoadReportTest, TheTableShowsRatesLatenciesAndTimesOfTheServer) {
  const std::string text = TextOf(MakeReport());
  for (const char* part : {"m/a [64, 32] on cpu:0", "4 callers", " 500 ", " 2000 ", "1.5 ms",
                           "12.0", "30 us", "70 us", "1000.0 KiB/s", "2.0 MiB/s", "too short"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("SEND LAG")));
}

TEST(LoadReportTest, TheTableNamesWhatWentWrong) {
  Report report = MakeReport();
  Tally& total = report.entries[0].result.total;
  total.errors["UNAVAILABLE"] = {3, "draining"};
  total.mismatches = 2;
  total.first_mismatch = "m/a: row 1";
  total.checked = 50;
  const std::string text = TextOf(report);
  EXPECT_THAT(text, HasSubstr("4 callers: 3 UNAVAILABLE: draining"));
  EXPECT_THAT(text, HasSubstr("2 WRONG ANSWERS; the first: m/a: row 1"));
  EXPECT_THAT(text, HasSubstr("50 answers checked"));
}

TEST(LoadReportTest, SaysThatARunWasNotStable) {
  Report report = MakeReport();
  RunResult& result = report.entries[0].result;
  result.windows.push_back({1.0, 100, 0, 1'000'000});
  result.stability = StabilityOf(result.windows, 10.0);
  EXPECT_THAT(TextOf(report), HasSubstr("NO (rate "));
  result.stability = StabilityOf(result.windows, 1000.0);
  EXPECT_THAT(TextOf(report), HasSubstr("yes"));
}

TEST(LoadReportTest, SaysThatTheGeneratorOrTheServerCouldNotKeepUp) {
  Report report = MakeReport();
  Entry& entry = report.entries[0];
  entry.callers = 0;
  entry.rate = 1000.0;
  entry.result.offered_rate = 1000.0;
  entry.result.total.send_lag_ns.Record(1'000'000);
  const std::string text = TextOf(report);
  EXPECT_THAT(text, HasSubstr("1000/s"));
  EXPECT_THAT(text, HasSubstr("SEND LAG"));
  EXPECT_THAT(text, HasSubstr("only 50 % of the offered rate"));
}

TEST(LoadReportTest, ComparesWithEcho) {
  Report report = MakeReport();
  report.entries[0].echo = Result(2000, 500'000);
  EXPECT_THAT(TextOf(report), HasSubstr("50 % of echo's rate; p50 3.00 and p99 3.00 times echo's"));
  const cli::Json json = JsonOf(report);
  EXPECT_EQ(json["runs"][0]["over_echo"]["rate"], 0.5);
  EXPECT_EQ(json["runs"][0]["over_echo"]["p99"], 3.0);
  EXPECT_EQ(json["runs"][0]["echo"]["answers_per_s"], 1000.0);
}

TEST(LoadReportTest, TheJsonHoldsEveryFlagAndNumber) {
  Report report = MakeReport();
  report.find_max = FindMaxResult{.rate = 950.0, .failed_rate = 990.0, .steps = {{.rate = 950.0}}};
  const cli::Json json = cli::Json::parse(JsonOf(report).dump());
  EXPECT_EQ(json["parameters"]["weight"], (std::vector<std::string>{"m/a", "m/b"}));
  EXPECT_EQ(json["parameters"]["seed"], 1);
  EXPECT_EQ(json["layers"][0]["k"], 32);
  const cli::Json& run = json["runs"][0];
  EXPECT_EQ(run["callers"], 4);
  EXPECT_EQ(run["answers_per_s"], 500.0);
  EXPECT_EQ(run["rows_per_s"], 2000.0);
  EXPECT_EQ(run["latency_us"]["p99_9"], 1500.0);
  EXPECT_EQ(run["queue_us"]["mean"], 30.0);
  EXPECT_EQ(run["kernels"]["cpu_gemv"], 1000);
  EXPECT_EQ(run["windows"].size(), 2u);
  EXPECT_EQ(json["find_max"]["rate"], 950.0);
  EXPECT_EQ(json["find_max"]["steps"].size(), 1u);
}

TEST(LoadReportTest, EveryLineOfTheCsvHasAsManyCellsAsItsHead) {
  Report report = MakeReport();
  report.entries.push_back(report.entries[0]);
  const std::string csv = CsvOf(report);
  std::vector<int> commas;
  std::vector<std::string> lines(1);
  bool quoted = false;
  commas.push_back(0);
  for (const char c : csv) {
    if (c == '"') quoted = !quoted;
    if (c == ',' && !quoted) ++commas.back();
    if (c == '\n') {
      commas.push_back(0);
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  ASSERT_EQ(lines.size(), 4u);  // the head, two runs, and nothing
  EXPECT_GT(commas[0], 50);
  EXPECT_EQ(commas[1], commas[0]);
  EXPECT_EQ(commas[2], commas[0]);
  EXPECT_EQ(lines[3], "");
  EXPECT_THAT(lines[0], HasSubstr("latency_us_p99,"));
  EXPECT_THAT(lines[1], HasSubstr("\"a, \"\"quoted\"\" label\""));
  EXPECT_THAT(lines[1], HasSubstr("m/a m/b"));
}

TEST(LoadReportTest, TellsWhatASearchFound) {
  Report report;
  report.parameters = {{"p99_ms", 5.0}};
  report.find_max = FindMaxResult{};
  EXPECT_THAT(TextOf(report), HasSubstr("no rate has its p99 within 5 ms"));
  report.find_max->rate = 1234.0;
  EXPECT_THAT(TextOf(report), HasSubstr("1234/s, and no higher one was tried that failed"));
  report.find_max->failed_rate = 1300.0;
  EXPECT_THAT(TextOf(report), HasSubstr("highest rate with p99 within 5 ms: 1234/s\n"));
}

}  // namespace
}  // namespace nibble::load
