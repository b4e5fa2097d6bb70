// The names, types and labels that dashboards and alerts rely on.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/metrics/metrics.h"

namespace nibble::server {
namespace {

// Metrics with every series that a server makes.
std::unique_ptr<Metrics> AllMetrics() {
  auto metrics = Metrics::Create("0.0.0", "cpu");
  metrics->Rpc("Matmul")->Finished(0, 1e-3);
  metrics->Op("matmul")->Queued(1e-5);
  metrics->Op("matmul")->BatchFormed(3);
  metrics->Kernel("matmul", "nf4", "gemv")->BatchDone(1e-4, 10, 20);
  DeviceMetrics* const device = metrics->Device("cpu:0");
  device->SetPeakBandwidth(1e9);
  device->AddTraffic(10, 1e-3);
  device->SetQueueRows(1);
  device->SetMemory("total", 2);
  device->SetResidentBytes("nf4", 3);
  device->SetWeights("ready", 4);
  metrics->Rejection("queue_full")->Rejected();
  metrics->InflightAdd(1);
  return metrics;
}

// One line a metric, sorted: name, type, labels.
std::string NamesIn(const std::string& text) {
  std::map<std::string, std::string> types;
  std::map<std::string, std::set<std::string>> labels;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      std::istringstream words(line.substr(7));
      std::string name;
      std::string type;
      words >> name >> type;
      types[name] = type;
      continue;
    }
    if (line.starts_with('#')) continue;
    std::string name = line.substr(0, line.find_first_of("{ "));
    for (const char* suffix : {"_bucket", "_sum", "_count"}) {
      const std::string family = name.substr(0, name.rfind('_'));
      if (name.ends_with(suffix) && types[family] == "histogram") name = family;
    }
    size_t at = line.find('{');
    const size_t end = line.rfind('}');
    while (at < end) {
      const size_t equals = line.find("=\"", at);
      const std::string label = line.substr(at + 1, equals - at - 1);
      if (label != "le") labels[name].insert(label);
      at = line.find_first_of(",}", line.find('"', equals + 2));
    }
  }
  std::string names;
  for (const auto& [name, type] : types) {
    names += name + " " + type;
    char separator = ' ';
    for (const std::string& label : labels[name]) {
      names += separator + label;
      separator = ',';
    }
    names += '\n';
  }
  return names;
}

TEST(MetricNamesTest, AreFrozen) {
  std::ifstream file(NIBBLE_SOURCE_DIR "/tests/unit/server_leaves/metric_names.golden");
  ASSERT_TRUE(file.is_open());
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(NamesIn(AllMetrics()->Text()), golden.str());
}

TEST(MetricNamesTest, PromtoolHasNoComplaint) {
  ASSERT_EQ(std::system("command -v promtool >/dev/null"), 0)
      << "promtool is not installed; it comes with Prometheus (Debian package prometheus)";
  const std::string path = ::testing::TempDir() + "nibble_metrics.txt";
  std::ofstream(path) << AllMetrics()->Text();
  FILE* const output = popen(("promtool check metrics <" + path + " 2>&1").c_str(), "r");
  ASSERT_NE(output, nullptr);
  std::string said;
  for (int c; (c = std::fgetc(output)) != EOF;) said += static_cast<char>(c);
  EXPECT_EQ(pclose(output), 0);
  EXPECT_EQ(said, "");
}

}  // namespace
}  // namespace nibble::server
