#include "server/log/log.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/log/escape.h"

namespace nibble::server::log {
namespace {

using ::testing::Each;
using ::testing::EndsWith;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

// Stands in for stderr with a socket that keeps the boundaries of writes.
class StderrCapture {
 public:
  StderrCapture() {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    saved_ = dup(STDERR_FILENO);
    EXPECT_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    close(ends[1]);
    reader_ = std::thread([this, from = ends[0]] {
      std::vector<char> buffer(1 << 16);
      for (ssize_t n; (n = read(from, buffer.data(), buffer.size())) > 0;) {
        writes_.emplace_back(buffer.data(), static_cast<size_t>(n));
      }
      close(from);
    });
  }
  ~StderrCapture() {
    if (reader_.joinable()) Stop();
  }

  // The writes so far, one element each.
  std::vector<std::string> Stop() {
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    reader_.join();
    return writes_;
  }

 private:
  int saved_ = -1;
  std::thread reader_;
  std::vector<std::string> writes_;
};

// The line that one event with one field makes, from its event on and without the line's end.
std::string Line(std::string_view event, std::string_view value) {
  StderrCapture capture;
  Info(event, {{"v", value}});
  const std::vector<std::string> writes = capture.Stop();
  EXPECT_THAT(writes, SizeIs(1));
  if (writes.empty()) return "";
  const std::string& line = writes[0];
  EXPECT_THAT(line, EndsWith("\n"));
  return line.substr(line.find("event="), line.size() - line.find("event=") - 1);
}

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override { SetLevel("info"); }
};

TEST_F(LogTest, WritesOneLogfmtLine) {
  StderrCapture capture;
  Warn("weight_ready", {{"name", "m/a b"}, {"bytes", 123}, {"ok", true}});
  const std::vector<std::string> writes = capture.Stop();
  ASSERT_THAT(writes, SizeIs(1));
  EXPECT_THAT(writes[0],
              MatchesRegex("ts=[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]"
                           "\\.[0-9]{3}Z level=warn event=weight_ready name=\"m/a b\" bytes=123 "
                           "ok=true\n"));
}

TEST_F(LogTest, TimeIsUtcWhateverTheZone) {
  setenv("TZ", "Asia/Kathmandu", 1);
  tzset();
  StderrCapture capture;
  const time_t before = time(nullptr);
  Info("tick");
  const time_t after = time(nullptr);
  const std::vector<std::string> writes = capture.Stop();
  unsetenv("TZ");
  tzset();
  ASSERT_THAT(writes, SizeIs(1));
  tm parts{};
  ASSERT_NE(strptime(writes[0].c_str(), "ts=%Y-%m-%dT%H:%M:%S", &parts), nullptr) << writes[0];
  const time_t logged = timegm(&parts);
  EXPECT_GE(logged, before - 1);
  EXPECT_LE(logged, after + 1);
}

TEST_F(LogTest, QuotesOnlyWhatNeedsIt) {
  EXPECT_EQ(Line("e", "plain-word/0.5:x"), "event=e v=plain-word/0.5:x");
  EXPECT_EQ(Line("e", ""), "event=e v=\"\"");
  EXPECT_EQ(Line("e", "two words"), "event=e v=\"two words\"");
  EXPECT_EQ(Line("e", "a=b"), "event=e v=\"a=b\"");
  EXPECT_EQ(Line("e", "größe"), "event=e v=größe");
  EXPECT_EQ(Line("two words", "1"), "event=\"two words\" v=1");
}

TEST_F(LogTest, EscapesWhatCouldForgeALineOrDriveATerminal) {
  EXPECT_EQ(Line("e", "a\nts=now"), "event=e v=\"a\\nts=now\"");
  EXPECT_EQ(Line("e", "\r\t"), "event=e v=\"\\r\\t\"");
  EXPECT_EQ(Line("e", std::string_view("\0\x1b[2J\x7f", 6)),
            "event=e v=\"\\u0000\\u001b[2J\\u007f\"");
  EXPECT_EQ(Line("e", "say \"hi\" \\"), "event=e v=\"say \\\"hi\\\" \\\\\"");
  EXPECT_EQ(Line("e",
                 "\xc2\x9b"
                 "2J"),
            "event=e v=\"\\u009b2J\"");
  EXPECT_EQ(Line("e", "\xe2\x80\xa8"), "event=e v=\"\\u2028\"");
}

TEST_F(LogTest, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(Line("e", "a\xff\xfe"), "event=e v=\"a\\\\xff\\\\xfe\"");
  EXPECT_EQ(Line("e", "\xe2\x82"), "event=e v=\"\\\\xe2\\\\x82\"");
}

TEST_F(LogTest, BracesAreText) { EXPECT_EQ(Line("e", "{} {0:x}"), "event=e v=\"{} {0:x}\""); }

TEST_F(LogTest, CutsLongValues) {
  EXPECT_EQ(Line("e", std::string(100000, 'a')),
            "event=e v=\"" + std::string(4096, 'a') + "... (95904 more bytes)\"");
}

TEST_F(LogTest, LevelSelects) {
  const auto logged = [] {
    StderrCapture capture;
    Debug("d");
    Info("i");
    Warn("w");
    Error("e");
    std::string levels;
    for (const std::string& line : capture.Stop()) levels += line[line.find("event=") + 6];
    return levels;
  };
  EXPECT_EQ(logged(), "iwe");
  for (const auto& [level, expected] : std::vector<std::pair<const char*, const char*>>{
           {"debug", "diwe"}, {"info", "iwe"}, {"warn", "we"}, {"error", "e"}}) {
    EXPECT_TRUE(SetLevel(level));
    EXPECT_EQ(logged(), expected) << level;
  }
  EXPECT_TRUE(Enabled(Level::kError));
  EXPECT_FALSE(Enabled(Level::kWarn));
  EXPECT_FALSE(SetLevel("warning"));
  EXPECT_FALSE(SetLevel(""));
  EXPECT_EQ(logged(), "e");
}

TEST_F(LogTest, ThreadsDoNotMixLines) {
  constexpr int kThreads = 4;
  constexpr int kLines = 200;
  StderrCapture capture;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < kLines; ++i) Info("line", {{"t", t}, {"i", i}, {"s", "x y"}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<std::string> writes = capture.Stop();
  EXPECT_THAT(writes, SizeIs(kThreads * kLines));
  EXPECT_THAT(writes, Each(MatchesRegex("ts=[^ ]+ level=info event=line t=[0-9]+ i=[0-9]+ "
                                        "s=\"x y\"\n")));
}

TEST(EscapeTest, TakesExactlyTheWellFormed) {
  for (const std::string_view good :
       {"", "a", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
        "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(Utf8PrefixBytes(good), good.size()) << ::testing::PrintToString(good);
  }
  for (const std::string_view bad :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2",
        "\xc2"
        "a",
        "\xe0\x9f\xbf", "\xed\xa0\x80", "\xed\xbf\xbf", "\xe2\x82", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(Utf8PrefixBytes("ab" + std::string(bad)), 2u) << ::testing::PrintToString(bad);
  }
}

}  // namespace
}  // namespace nibble::server::log
