#include "server/metrics/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/metrics/process_metrics.h"
#include "server/metrics/traffic_window.h"

namespace nibble::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

// The value of the series, written as in the text format with its labels in order; NaN without it.
double ValueOf(const Metrics& metrics, const std::string& series) {
  std::string text("\n");
  text += metrics.Text();
  const size_t at = text.find("\n" + series + " ");
  if (at == std::string::npos) return std::numeric_limits<double>::quiet_NaN();
  return std::stod(text.substr(at + series.size() + 2));
}

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// What is received until the other side closes the connection.
std::string ReadAll(int fd) {
  std::string answer;
  std::vector<char> buffer(1 << 16);
  for (ssize_t n; (n = read(fd, buffer.data(), buffer.size())) > 0;) {
    answer.append(buffer.data(), static_cast<size_t>(n));
  }
  close(fd);
  return answer;
}

std::string HttpGet(int port, const std::string& path) {
  const int fd = Connect(port);
  const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  return ReadAll(fd);
}

class MetricsTest : public ::testing::Test {
 protected:
  const std::unique_ptr<Metrics> metrics_ = Metrics::Create("1.2.3", "cpu");
};

TEST_F(MetricsTest, BuildInfoIsOne) {
  EXPECT_EQ(ValueOf(*metrics_, "nibble_build_info{backend=\"cpu\",version=\"1.2.3\"}"), 1);
}

TEST_F(MetricsTest, HandlesAreMadeOnce) {
  EXPECT_EQ(metrics_->Rpc("Matmul"), metrics_->Rpc("Matmul"));
  EXPECT_NE(metrics_->Rpc("Matmul"), metrics_->Rpc("Dequantize"));
  EXPECT_EQ(metrics_->Op("matmul"), metrics_->Op("matmul"));
  EXPECT_NE(metrics_->Op("matmul"), metrics_->Op("norm_quant"));
  EXPECT_EQ(metrics_->Device("cpu:0"), metrics_->Device("cpu:0"));
  EXPECT_NE(metrics_->Device("cpu:0"), metrics_->Device("cpu:1"));
  EXPECT_EQ(metrics_->Kernel("a", "b", "c"), metrics_->Kernel("a", "b", "c"));
  EXPECT_NE(metrics_->Kernel("a", "b", "c"), metrics_->Kernel("a", "c", "b"));
}

TEST_F(MetricsTest, CountsRpcsByMethodAndCode) {
  RpcMetrics* const rpc = metrics_->Rpc("Matmul");
  // Every code is there from the start, so that the first error is an increase.
  EXPECT_EQ(ValueOf(*metrics_, "nibble_rpc_requests_total{code=\"UNAVAILABLE\",method=\"Matmul\"}"),
            0);
  rpc->Finished(0, 15e-6);
  rpc->Finished(0, 15e-6);
  rpc->Finished(3, 2.5);
  rpc->Finished(16, 100);
  rpc->Finished(17, 0);
  rpc->Finished(-1, 0);
  const auto count = [this](const std::string& code) {
    return ValueOf(*metrics_, "nibble_rpc_requests_total{code=\"" + code + "\",method=\"Matmul\"}");
  };
  EXPECT_EQ(count("OK"), 2);
  EXPECT_EQ(count("INVALID_ARGUMENT"), 1);
  EXPECT_EQ(count("UNAUTHENTICATED"), 1);
  EXPECT_EQ(count("UNKNOWN"), 2);
  EXPECT_EQ(count("INTERNAL"), 0);
  const auto bucket = [this](const std::string& le) {
    return ValueOf(*metrics_,
                   "nibble_rpc_duration_seconds_bucket{method=\"Matmul\",le=\"" + le + "\"}");
  };
  EXPECT_EQ(bucket("1e-05"), 2);
  EXPECT_EQ(bucket("2e-05"), 4);
  EXPECT_EQ(bucket("2"), 4);
  EXPECT_EQ(bucket("5"), 5);
  EXPECT_EQ(bucket("10"), 5);
  EXPECT_EQ(bucket("+Inf"), 6);
  EXPECT_DOUBLE_EQ(ValueOf(*metrics_, "nibble_rpc_duration_seconds_sum{method=\"Matmul\"}"),
                   102.50003);
}

TEST_F(MetricsTest, CodesHaveTheirCanonicalNames) {
  metrics_->Rpc("Matmul");
  const std::vector<std::string> names = {"OK",
                                          "CANCELLED",
                                          "UNKNOWN",
                                          "INVALID_ARGUMENT",
                                          "DEADLINE_EXCEEDED",
                                          "NOT_FOUND",
                                          "ALREADY_EXISTS",
                                          "PERMISSION_DENIED",
                                          "RESOURCE_EXHAUSTED",
                                          "FAILED_PRECONDITION",
                                          "ABORTED",
                                          "OUT_OF_RANGE",
                                          "UNIMPLEMENTED",
                                          "INTERNAL",
                                          "UNAVAILABLE",
                                          "DATA_LOSS",
                                          "UNAUTHENTICATED"};
  for (size_t code = 0; code < names.size(); ++code) {
    for (size_t i = 0; i <= code; ++i) metrics_->Rpc("Matmul")->Finished(static_cast<int>(code), 0);
    EXPECT_EQ(ValueOf(*metrics_,
                      "nibble_rpc_requests_total{code=\"" + names[code] + "\",method=\"Matmul\"}"),
              static_cast<double>(code + 1));
  }
}

TEST_F(MetricsTest, KernelsCountBatchesBytesAndTime) {
  KernelMetrics* const kernel = metrics_->Kernel("matmul", "nf4", "gemv");
  kernel->BatchDone(30e-6, 1000, 10);
  kernel->BatchDone(0.5, uint64_t{1} << 40, 5);
  const std::string labels = "format=\"nf4\",kernel=\"gemv\",op=\"matmul\"";
  EXPECT_EQ(ValueOf(*metrics_, "nibble_batches_total{" + labels + "}"), 2);
  EXPECT_EQ(ValueOf(*metrics_, "nibble_compute_duration_seconds_count{" + labels + "}"), 2);
  EXPECT_EQ(
      ValueOf(*metrics_, "nibble_compute_duration_seconds_bucket{" + labels + ",le=\"5e-05\"}"), 1);
  EXPECT_EQ(ValueOf(*metrics_, "nibble_device_bytes_total{direction=\"read\"," + labels + "}"),
            1099511628776.0);
  EXPECT_EQ(ValueOf(*metrics_, "nibble_device_bytes_total{direction=\"written\"," + labels + "}"),
            15);
}

TEST_F(MetricsTest, OpsObserveRowsAndQueueTime) {
  OpMetrics* const op = metrics_->Op("matmul");
  op->Queued(12e-6);
  op->BatchFormed(1);
  op->BatchFormed(3);
  op->BatchFormed(100000);
  EXPECT_EQ(ValueOf(*metrics_, "nibble_queue_duration_seconds_count{op=\"matmul\"}"), 1);
  const auto bucket = [this](const std::string& le) {
    return ValueOf(*metrics_, "nibble_batch_rows_bucket{op=\"matmul\",le=\"" + le + "\"}");
  };
  EXPECT_EQ(bucket("1"), 1);
  EXPECT_EQ(bucket("2"), 1);
  EXPECT_EQ(bucket("4"), 2);
  EXPECT_EQ(bucket("65536"), 2);
  EXPECT_EQ(bucket("+Inf"), 3);
}

TEST_F(MetricsTest, DevicesSetGauges) {
  DeviceMetrics* const device = metrics_->Device("cpu:0");
  device->SetQueueRows(7);
  device->SetMemory("total", 1 << 30);
  device->SetMemory("used", 123);
  device->SetMemory("used", 124);
  device->SetResidentBytes("nf4", 55);
  device->SetWeights("ready", 3);
  device->SetPeakBandwidth(2e9);
  EXPECT_EQ(ValueOf(*metrics_, "nibble_queue_rows{device=\"cpu:0\"}"), 7);
  EXPECT_EQ(ValueOf(*metrics_, "nibble_device_memory_bytes{device=\"cpu:0\",kind=\"total\"}"),
            1 << 30);
  EXPECT_EQ(ValueOf(*metrics_, "nibble_device_memory_bytes{device=\"cpu:0\",kind=\"used\"}"), 124);
  EXPECT_EQ(ValueOf(*metrics_, "nibble_weights_resident_bytes{device=\"cpu:0\",format=\"nf4\"}"),
            55);
  EXPECT_EQ(ValueOf(*metrics_, "nibble_weights{device=\"cpu:0\",state=\"ready\"}"), 3);
  EXPECT_EQ(ValueOf(*metrics_, "nibble_device_peak_bandwidth_bytes_per_second{device=\"cpu:0\"}"),
            2e9);
}

TEST_F(MetricsTest, CountsInflightAndRejected) {
  EXPECT_EQ(ValueOf(*metrics_, "nibble_inflight_requests"), 0);
  metrics_->InflightAdd(3);
  metrics_->InflightAdd(-1);
  EXPECT_EQ(ValueOf(*metrics_, "nibble_inflight_requests"), 2);
  RejectionMetrics* const full = metrics_->Rejection("queue_full");
  EXPECT_EQ(metrics_->Rejection("queue_full"), full);
  EXPECT_EQ(ValueOf(*metrics_, "nibble_rejected_total{reason=\"queue_full\"}"), 0);
  metrics_->Rejection("queue_full")->Rejected();
  metrics_->Rejection("queue_full")->Rejected();
  metrics_->Rejection("draining")->Rejected();
  EXPECT_EQ(ValueOf(*metrics_, "nibble_rejected_total{reason=\"queue_full\"}"), 2);
  EXPECT_EQ(ValueOf(*metrics_, "nibble_rejected_total{reason=\"draining\"}"), 1);
}

TEST_F(MetricsTest, BandwidthRatioIsAchievedOverPeak) {
  DeviceMetrics* const device = metrics_->Device("cpu:0");
  const std::string ratio = "nibble_bandwidth_ratio{device=\"cpu:0\"}";
  EXPECT_EQ(ValueOf(*metrics_, ratio), 0);
  device->AddTraffic(3'000'000'000, 2.0);
  EXPECT_EQ(ValueOf(*metrics_, ratio), 0) << "the peak is unknown";
  device->SetPeakBandwidth(3e9);
  EXPECT_DOUBLE_EQ(ValueOf(*metrics_, ratio), 0.5);
}

TEST(TrafficWindowTest, SumsBytesOverDeviceTime) {
  TrafficWindow window;
  const TrafficWindow::TimePoint start{seconds(1000)};
  EXPECT_EQ(window.BytesPerSecond(start), 0);
  window.Add(start, 100, 1);
  window.Add(start + milliseconds(2500), 500, 2);
  EXPECT_DOUBLE_EQ(window.BytesPerSecond(start + seconds(3)), 200);
}

TEST(TrafficWindowTest, ForgetsWhatIsTenSecondsOld) {
  TrafficWindow window;
  const TrafficWindow::TimePoint start{seconds(1000)};
  window.Add(start, 100, 1);
  window.Add(start + seconds(5), 900, 1);
  EXPECT_DOUBLE_EQ(window.BytesPerSecond(start + seconds(9)), 500);
  EXPECT_DOUBLE_EQ(window.BytesPerSecond(start + seconds(10)), 900);
  EXPECT_EQ(window.BytesPerSecond(start + seconds(15)), 0);
  // The slot of a second long gone is used again.
  window.Add(start + seconds(20), 7, 1);
  EXPECT_DOUBLE_EQ(window.BytesPerSecond(start + seconds(20)), 7);
}

TEST(TrafficWindowTest, IgnoresTimesThatAreNone) {
  TrafficWindow window;
  const TrafficWindow::TimePoint now{seconds(1000)};
  window.Add(now, 100, 0);
  window.Add(now, 100, -1);
  window.Add(now, 100, std::numeric_limits<double>::infinity());
  window.Add(now, 100, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(window.BytesPerSecond(now), 0);
  window.Add(now, 100, 4);
  EXPECT_DOUBLE_EQ(window.BytesPerSecond(now), 25);
}

TEST_F(MetricsTest, ProcessMetricsAreThoseOfThisProcess) {
  EXPECT_GT(ValueOf(*metrics_, "process_resident_memory_bytes"), 1 << 20);
  EXPECT_GE(ValueOf(*metrics_, "process_virtual_memory_bytes"),
            ValueOf(*metrics_, "process_resident_memory_bytes"));
  EXPECT_GE(ValueOf(*metrics_, "process_cpu_seconds_total"), 0);
  EXPECT_GE(ValueOf(*metrics_, "process_threads"), 1);
  const double start = ValueOf(*metrics_, "process_start_time_seconds");
  EXPECT_GT(start, 1e9);
  EXPECT_LT(start, static_cast<double>(time(nullptr)) + 60);
  EXPECT_EQ(ValueOf(*metrics_, "process_max_fds"), static_cast<double>(sysconf(_SC_OPEN_MAX)));
  const double open = ValueOf(*metrics_, "process_open_fds");
  const int fd = dup(STDIN_FILENO);
  EXPECT_EQ(ValueOf(*metrics_, "process_open_fds"), open + 1);
  close(fd);
}

TEST(ProcessStatTest, TakesNamesOfAnyBytes) {
  ProcessStat stat;
  ASSERT_TRUE(
      ParseProcessStat("42 (a) R 1 (b\n) S 1 2 3 4 5 6 7 8 9 10 1111 2222 13 14 15 16 17 "
                       "18 1900 200000 2100 22",
                       &stat));
  EXPECT_EQ(stat.user_ticks, 1111u);
  EXPECT_EQ(stat.system_ticks, 2222u);
  EXPECT_EQ(stat.threads, 17);
  EXPECT_EQ(stat.start_ticks, 1900u);
  EXPECT_EQ(stat.virtual_bytes, 200000u);
  EXPECT_EQ(stat.resident_pages, 2100);
}

TEST(ProcessStatTest, RefusesOtherText) {
  ProcessStat stat;
  EXPECT_FALSE(ParseProcessStat("", &stat));
  EXPECT_FALSE(ParseProcessStat("42 (a", &stat));
  EXPECT_FALSE(ParseProcessStat("42 (a) S 1 2 3", &stat));
  EXPECT_FALSE(
      ParseProcessStat("42 (a) S 1 2 3 4 5 6 7 8 9 10 x y 13 14 15 16 17 18 19 20 21", &stat));
}

TEST_F(MetricsTest, ServesTheTextOverHttp) {
  metrics_->Rpc("Matmul")->Finished(0, 1e-3);
  const absl::StatusOr<int> port = metrics_->Serve("127.0.0.1:0");
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_GT(*port, 0);
  const std::string answer = HttpGet(*port, "/metrics");
  EXPECT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_THAT(answer, HasSubstr("text/plain"));
  EXPECT_THAT(answer, HasSubstr("\nnibble_rpc_requests_total{code=\"OK\",method=\"Matmul\"} 1\n"));
  EXPECT_THAT(answer, HasSubstr("\nprocess_open_fds "));
  EXPECT_THAT(HttpGet(*port, "/etc/passwd"), HasSubstr("404"));
  EXPECT_EQ(metrics_->Serve("127.0.0.1:0").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(MetricsTest, ServeNamesAnAddressItCannotListenOn) {
  const absl::StatusOr<int> port = metrics_->Serve("127.0.0.1:0");
  ASSERT_TRUE(port.ok()) << port.status();
  const auto other = Metrics::Create("1", "cpu");
  for (const std::string& address :
       {"127.0.0.1:" + std::to_string(*port), std::string("203.0.113.1:0"), std::string("nonsense"),
        std::string(""), std::string("[::1]:99999")}) {
    const absl::StatusOr<int> refused = other->Serve(address);
    ASSERT_FALSE(refused.ok()) << address;
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(refused.status().ToString(), HasSubstr(address));
  }
  EXPECT_TRUE(other->Serve("127.0.0.1:0").ok()) << "a failed try leaves nothing behind";
}

TEST_F(MetricsTest, ThreadsAddWhileOthersScrape) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 300;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < kRounds; ++i) {
        metrics_->Rpc("Matmul")->Finished(i % 17, 1e-4);
        metrics_->Kernel("matmul", "nf4", "gemv")->BatchDone(1e-4, 1, 2);
        metrics_->Op("matmul")->BatchFormed(i);
        metrics_->Device("cpu:0")->AddTraffic(1, 1e-3);
        metrics_->Device("cpu:0")->SetMemory("used", i);
        metrics_->Rejection("queue_full")->Rejected();
        metrics_->InflightAdd(i % 2 == 0 ? 1 : -1);
      }
    });
  }
  for (int i = 0; i < 20; ++i) EXPECT_THAT(metrics_->Text(), HasSubstr("nibble_build_info"));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ValueOf(*metrics_, "nibble_rpc_duration_seconds_count{method=\"Matmul\"}"),
            kThreads * kRounds);
  EXPECT_EQ(ValueOf(*metrics_, "nibble_rejected_total{reason=\"queue_full\"}"), kThreads * kRounds);
  EXPECT_EQ(ValueOf(*metrics_, "nibble_inflight_requests"), 0);
}

TEST_F(MetricsTest, AConnectionThatStaysSilentIsClosed) {
  const absl::StatusOr<int> port = metrics_->Serve("127.0.0.1:0");
  ASSERT_TRUE(port.ok()) << port.status();
  const int silent = Connect(*port);
  // Far longer than the server waits, and shorter than its library would.
  const timeval patience{.tv_sec = 20, .tv_usec = 0};
  ASSERT_EQ(setsockopt(silent, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
  char byte = 0;
  EXPECT_GE(read(silent, &byte, 1), 0) << std::strerror(errno);
  close(silent);
}

}  // namespace
}  // namespace nibble::server
