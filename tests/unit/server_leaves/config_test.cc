#include "server/config/config.h"

#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server_leaves/config_support.h"

namespace nibble::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(ConfigTest, NothingGivenMeansTheDefaults) {
  const absl::StatusOr<Config> config = Parse({});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(ToYaml(*config), ToYaml(Config()));
  EXPECT_THAT(config->listen, ElementsAre("0.0.0.0:50051"));
  EXPECT_FALSE(config->check_config);
}

TEST(ConfigTest, FlagsTakeTheirValueAfterEqualsOrNext) {
  const absl::StatusOr<Config> config =
      Parse({"--listen=127.0.0.1:1", "--max-batch-rows", "64", "--max-queue-delay-us=5",
             "--cpu-devices", "2", "--log-level=debug", "--check-config",
             "--metrics-listen=", "--weights-root=a=b", "--cpu-memory-bytes=1536MiB"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->listen, ElementsAre("127.0.0.1:1"));
  EXPECT_EQ(config->max_batch_rows, 64);
  EXPECT_EQ(config->max_queue_delay_us, 5);
  EXPECT_EQ(config->cpu_devices, 2);
  EXPECT_EQ(config->log_level, "debug");
  EXPECT_TRUE(config->check_config);
  EXPECT_EQ(config->metrics_listen, "");
  EXPECT_EQ(config->weights_root, "a=b");
  EXPECT_EQ(config->cpu_memory_bytes, uint64_t{1536} << 20);
}

TEST(ConfigTest, TheLastUseOfAFlagCounts) {
  const absl::StatusOr<Config> config = Parse({"--max-batch-rows=1", "--max-batch-rows=2"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->max_batch_rows, 2);
}

TEST(ConfigTest, ListsAndModelsAddUp) {
  const absl::StatusOr<Config> config = Parse({"--device=cpu:0,cpu:2", "--device", "cpu:1",
                                               "--model=llama/8b=/m/a=b,c", "--model", "x=rel"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->device, ElementsAre("cpu:0", "cpu:2", "cpu:1"));
  ASSERT_THAT(config->model, SizeIs(2));
  EXPECT_EQ(config->model[0].name, "llama/8b");
  EXPECT_EQ(config->model[0].directory, "/m/a=b,c");
  EXPECT_EQ(config->model[1].name, "x");
  EXPECT_EQ(config->model[1].directory, "rel");
}

TEST(ConfigTest, SwitchesTakeTrueAndFalse) {
  EXPECT_TRUE(Parse({"--check-config=true"})->check_config);
  EXPECT_FALSE(Parse({"--check-config", "--check-config=false"})->check_config);
  EXPECT_EQ(FaultsOf({"--check-config=yes"}),
            "--check-config: expected true or false, received \"yes\"");
}

TEST(ConfigTest, HelpAndVersionAnswerWhateverElseIsThere) {
  const absl::StatusOr<Config> help = Parse({"--nonsense", "--config=/nonexistent", "--help"});
  ASSERT_TRUE(help.ok()) << help.status();
  EXPECT_TRUE(help->help);
  EXPECT_FALSE(help->version);
  EXPECT_TRUE(Parse({"--listen=bad", "--version"})->version);
}

TEST(ConfigTest, UnknownFlagsNameTheNearest) {
  EXPECT_EQ(FaultsOf({"--max-batch-row=3"}),
            "\"--max-batch-row\": unknown flag; did you mean --max-batch-rows?");
  EXPECT_EQ(FaultsOf({"--max_batch_rows=3"}),
            "\"--max_batch_rows\": unknown flag; did you mean --max-batch-rows?");
  EXPECT_EQ(FaultsOf({"--tls-cret=x"}), "\"--tls-cret\": unknown flag; did you mean --tls-cert?");
  EXPECT_EQ(FaultsOf({"--frobnicate"}), "\"--frobnicate\": unknown flag");
}

TEST(ConfigTest, WhatIsNoFlagIsAFault) {
  for (const char* argument : {"serve", "-v", "-", "--", ""}) {
    EXPECT_EQ(FaultsOf({argument}),
              std::string("command line: expected flags alone (--name=value), received \"")
                  .append(argument)
                  .append("\""));
  }
}

TEST(ConfigTest, AMissingValueIsAFault) {
  EXPECT_EQ(FaultsOf({"--listen"}),
            "--listen: expected --listen=ADDRESS,..., received the end of the command line");
  EXPECT_EQ(FaultsOf({"--weights-root", "--check-config"}),
            "--weights-root: expected --weights-root=DIR, received the flag \"--check-config\" "
            "next");
}

TEST(ConfigTest, EveryFaultIsReportedAtOnce) {
  const std::string faults =
      FaultsOf({"--listen=nowhere", "--max-batch-rows=0", "--bogus", "--tls-cert=c.pem",
                "--log-level=loud", "--model=../x=/d", "--device=gpu0"});
  EXPECT_THAT(
      LinesOf(faults),
      ElementsAre(
          "\"--bogus\": unknown flag",
          "--listen: expected HOST:PORT, [IPV6]:PORT or unix:PATH, with a port from 0 to 65535, "
          "received \"nowhere\"",
          "--max-batch-rows: expected an integer from 1 to 1048576, received \"0\"",
          "--log-level: expected debug, info, warn or error, received \"loud\"",
          "--model: expected a model name of 1 to 256 letters, digits and . _ - /, without empty, "
          ". or .. parts, received \"../x\"",
          "--device: expected a device id such as cpu:0 or cuda:1, received \"gpu0\"",
          "--tls-cert: expected tls_key with it, received \"c.pem\" alone"));
}

TEST(ConfigTest, AnyNumberOfFaultsIsListedUpToFifty) {
  const std::vector<std::string> lines =
      LinesOf(FaultsOf(std::vector<std::string>(1000, "--bogus")));
  ASSERT_THAT(lines, SizeIs(51));
  EXPECT_EQ(lines.back(), "and 950 more faults");
}

TEST(ConfigTest, FaultsStayOnTheirLineAndShort) {
  const std::string faults = FaultsOf({"--log-level=a\nb\x1b\xff"});
  EXPECT_THAT(LinesOf(faults), SizeIs(1));
  EXPECT_THAT(faults, HasSubstr("\"a\\nb\\u001b\\\\xff\""));
  EXPECT_THAT(FaultsOf({std::string("--log-level=").append(100000, 'a')}).size(),
              ::testing::Lt(400u));
}

TEST(ConfigTest, AddressesAreWellFormed) {
  for (const char* good : {"127.0.0.1:0", "0.0.0.0:65535", "localhost:50051", "my-host.example:1",
                           "[::]:50051", "[::1]:0", "[fe80::1]:7", "unix:/run/nibble.sock",
                           "unix:relative", "unix:///run/nibble.sock"}) {
    EXPECT_EQ(FaultsOf({"--listen", good}), "") << good;
  }
  for (const char* bad : {":",
                          ":50051",
                          "50051",
                          "localhost",
                          "localhost:",
                          "localhost:65536",
                          "localhost:-1",
                          "localhost:+1",
                          "localhost:1x",
                          "localhost: 1",
                          "1.2.3:4",
                          "1.2.3.4.5:6",
                          "256.1.1.1:1",
                          "::1:50051",
                          "[::1]",
                          "[::1]50051",
                          "[]:1",
                          "[localhost]:1",
                          "[::1:1",
                          "ho st:1",
                          "h/t:1",
                          "http://h:1",
                          "h:1 "}) {
    EXPECT_THAT(FaultsOf({"--listen", bad}), StartsWith("--listen: expected HOST:PORT")) << bad;
  }
}

TEST(ConfigTest, UnixPathsFitASocketAddress) {
  const std::string longest(107, 'p');
  EXPECT_EQ(FaultsOf({"--listen=unix:" + longest}), "");
  for (const std::string& bad : {std::string(), std::string("//"), longest + "p"}) {
    EXPECT_THAT(FaultsOf({std::string("--listen=unix:").append(bad)}),
                StartsWith("--listen: expected unix:PATH with a path of 1 to 107 bytes"));
  }
  EXPECT_THAT(FaultsOf({"--metrics-listen=unix:/x"}),
              StartsWith("--metrics-listen: expected HOST:PORT"));
}

TEST(ConfigTest, ListenersDoNotShareAPort) {
  EXPECT_EQ(FaultsOf({"--listen=127.0.0.1:1", "--control-listen=127.0.0.1:1"}),
            "--control-listen: expected another port than that of listen, which is "
            "\"127.0.0.1:1\", received \"127.0.0.1:1\"");
  EXPECT_THAT(FaultsOf({"--metrics-listen=127.0.0.1:50051"}), HasSubstr("that of listen"));
  EXPECT_THAT(FaultsOf({"--listen=unix:/a", "--control-listen=unix:/a"}),
              HasSubstr("that of listen"));
  EXPECT_EQ(FaultsOf({"--listen=127.0.0.1:0", "--control-listen=127.0.0.1:0"}), "");
  EXPECT_EQ(FaultsOf({"--listen=127.0.0.2:1", "--control-listen=127.0.0.1:1"}), "");
  EXPECT_EQ(FaultsOf({"--listen=unix:/a", "--control-listen=unix:/b", "--metrics-listen="}), "");
}

TEST(ConfigTest, TheDataPlaneListensOnSeveralAddresses) {
  const auto config = Parse({"--listen=127.0.0.1:1,unix:/a", "--listen=[::1]:1"});
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(config->listen, ElementsAre("127.0.0.1:1", "unix:/a", "[::1]:1"));
  EXPECT_EQ(FaultsOf({"--listen="}), "--listen: expected at least one address, received none");
  EXPECT_EQ(FaultsOf({"--listen=a:1,a:1"}),
            "--listen: expected each element once, received \"a:1\"");
  EXPECT_THAT(FaultsOf({"--listen=0.0.0.0:1,127.0.0.1:1"}), HasSubstr("that of listen"));
  EXPECT_THAT(FaultsOf({"--listen=a:1,unix:/b", "--control-listen=unix:/b"}),
              HasSubstr("that of listen, which is \"unix:/b\""));
}

TEST(ConfigTest, NumbersKeepTheirRange) {
  EXPECT_EQ(FaultsOf({"--max-batch-rows=1048576", "--max-queue-rows=1048576"}), "");
  for (const char* bad : {"", "0", "-1", "1048577", "1.5", "1e3", "0x10", "+5", " 5", "5 ", "ten",
                          "99999999999999999999999"}) {
    EXPECT_EQ(FaultsOf({"--max-batch-rows", bad}),
              std::string("--max-batch-rows: expected an integer from 1 to 1048576, received \"")
                  .append(bad)
                  .append("\""))
        << bad;
  }
  for (const char* flag :
       {"--cpu-devices=257", "--cpu-devices=0", "--cpu-threads=4097", "--cpu-threads=4294967297",
        "--max-queue-rows=0", "--max-queue-delay-us=60000001", "--contended-batch-us=-1",
        "--batches-in-flight=65", "--drain-grace-ms=3600001", "--drain-timeout-ms=-1"}) {
    EXPECT_THAT(FaultsOf({flag}), HasSubstr("expected an integer from")) << flag;
  }
}

TEST(ConfigTest, AutotuningGoesWithoutBatchInvariance) {
  EXPECT_EQ(FaultsOf({"--autotune", "--autotune-cache=f"}), "");
  EXPECT_EQ(FaultsOf({"--autotune", "--batch-invariant"}),
            "--autotune: expected no batch_invariant with it, received both");
  EXPECT_EQ(FaultsOf({"--autotune-cache=f"}),
            "--autotune-cache: expected autotune with it, received \"f\" alone");
}

TEST(ConfigTest, ByteSizesTakeUnits) {
  const auto bytes = [](const char* text) {
    const absl::StatusOr<Config> config = Parse({"--max-queue-bytes", text});
    return config.ok() ? config->max_queue_bytes : 0;
  };
  EXPECT_EQ(bytes("1"), 1u);
  EXPECT_EQ(bytes("3KiB"), 3072u);
  EXPECT_EQ(bytes("3MiB"), 3u << 20);
  EXPECT_EQ(bytes("3GiB"), uint64_t{3} << 30);
  EXPECT_EQ(bytes("1024TiB"), uint64_t{1} << 50);
  for (const char* bad : {"", "0", "KiB", "1kib", "1KB", "1 KiB", "1.5GiB", "-1", "1KiBMiB",
                          "1025TiB", "18446744073709551616", "17179869184GiB"}) {
    EXPECT_EQ(FaultsOf({"--max-queue-bytes", bad}),
              std::string("--max-queue-bytes: expected a number of bytes from 1 to 1024TiB, with "
                          "KiB, MiB, GiB, TiB or no unit, received \"")
                  .append(bad)
                  .append("\""));
  }
  EXPECT_EQ(FaultsOf({"--max-message-bytes=2147483647"}), "");
  EXPECT_THAT(FaultsOf({"--max-message-bytes=2GiB"}), HasSubstr("from 1KiB to 2147483647"));
}

TEST(ConfigTest, AModelSaysHowItsLayersAreTaken) {
  EXPECT_EQ(FaultsOf({"--model=b=/d,fuse=all"}),
            "--model: expected fuse=required or fuse=where-possible, received \"all\"");
  EXPECT_EQ(FaultsOf({"--model=b=/d,layers="}),
            "--model: expected layers=PATTERN with a pattern, received \"/d,layers=\"");
  const auto parsed =
      Parse({"--model=a=/d,fuse=required", "--model=c=/d,fuse=where-possible,layers=a,fuse=b",
             "--model=d=/d,f=,layers=x"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_THAT(parsed->model, SizeIs(3));
  EXPECT_EQ(parsed->model[0].directory, "/d");
  EXPECT_EQ(parsed->model[0].fuse, "required");
  EXPECT_EQ(parsed->model[0].layers, "");
  EXPECT_EQ(parsed->model[1].fuse, "where-possible");
  EXPECT_EQ(parsed->model[1].layers, "a,fuse=b");
  EXPECT_EQ(parsed->model[2].directory, "/d,f=");
  EXPECT_EQ(parsed->model[2].layers, "x");
  EXPECT_THAT(ToYaml(*parsed), HasSubstr("\"c\": \"/d,fuse=where-possible,layers=a,fuse=b\""));
}

TEST(ConfigTest, ModelsHaveLegalNamesAndADirectory) {
  EXPECT_EQ(FaultsOf({std::string("--model=").append(256, 'n').append("=/d")}), "");
  EXPECT_EQ(FaultsOf({"--model=Az09._-/x=/d"}), "");
  for (const std::string& bad : {std::string(), std::string("/a"), std::string("a/"),
                                 std::string("a//b"), std::string("a/./b"), std::string(".."),
                                 std::string("a b"), std::string("é"), std::string(257, 'n')}) {
    EXPECT_THAT(FaultsOf({std::string("--model=").append(bad).append("=/d")}),
                StartsWith("--model: expected a model name"))
        << bad;
  }
  EXPECT_EQ(FaultsOf({"--model=a"}), "--model: expected NAME=DIR, received \"a\"");
  EXPECT_EQ(FaultsOf({"--model=a="}),
            "--model: expected the directory of model \"a\" as UTF-8 text, received \"\"");
  EXPECT_EQ(FaultsOf({"--model=a=/x", "--model=a=/y"}),
            "--model: expected each model name once, received \"a\"");
}

TEST(ConfigTest, DevicesAreDistinctAndOfTheBackend) {
  EXPECT_EQ(FaultsOf({"--device=cpu:0,cuda:11"}), "");
  EXPECT_EQ(FaultsOf({"--device="}), "");
  EXPECT_EQ(FaultsOf({"--device=cpu:0,cpu:0"}),
            "--device: expected each element once, received \"cpu:0\"");
  EXPECT_EQ(FaultsOf({"--backend=cpu", "--device=cpu:0,cuda:0"}),
            "--device: expected devices of the backend cpu, received \"cuda:0\"");
  for (const char* bad :
       {"cpu", "cpu:", ":0", "cpu:x", "cpu:-1", "cpu:01", "tpu:0", "cpu:0,", ",cpu:0", "cpu:0 "}) {
    EXPECT_THAT(FaultsOf({"--device", bad}), StartsWith("--device: expected a device id")) << bad;
  }
}

TEST(ConfigTest, TlsOptionsNeedEachOther) {
  EXPECT_EQ(FaultsOf({"--tls-cert=c", "--tls-key=k", "--tls-client-ca=a"}), "");
  EXPECT_EQ(FaultsOf({"--tls-key=k"}),
            "--tls-key: expected tls_cert with it, received \"k\" alone");
  EXPECT_EQ(FaultsOf({"--tls-client-ca=a"}),
            "--tls-client-ca: expected tls_cert with it, received \"a\" alone");
}

TEST(ConfigTest, ABatchFitsTheQueue) {
  EXPECT_EQ(FaultsOf({"--max-queue-rows=100"}),
            "max_batch_rows: expected at most max_queue_rows, which is 100, received 1024");
  EXPECT_EQ(FaultsOf({"--max-queue-rows=100", "--max-batch-rows=100"}), "");
  // A queue whose bound is wrong says nothing about the batch.
  EXPECT_EQ(FaultsOf({"--max-queue-rows=x", "--max-batch-rows=1000000"}),
            "--max-queue-rows: expected an integer from 1 to 1099511627776, received \"x\"");
}

TEST(ConfigTest, TextIsUtf8) {
  EXPECT_EQ(FaultsOf({"--weights-root=/größe"}), "");
  EXPECT_EQ(FaultsOf({"--weights-root=/\xff"}),
            "--weights-root: expected UTF-8 text without a NUL, received \"/\\\\xff\"");
}

TEST(ConfigTest, HelpNamesEveryKeyAndItsDefault) {
  const std::string help = HelpText();
  for (const std::string& line : LinesOf(ToYaml(Config()))) {
    std::string flag("  --");
    for (const char c : line.substr(0, line.find(':'))) flag += c == '_' ? '-' : c;
    const bool is_switch = line.ends_with(": false");
    EXPECT_THAT(help, HasSubstr(flag + (is_switch ? "\n" : "="))) << line;
  }
  for (const char* text :
       {"--config=FILE\n", "--check-config\n", "--help\n", "--version\n", "Default: 256MiB.",
        "Default: 0.0.0.0:50051.", "Default: none.", "Default: 131072."}) {
    EXPECT_THAT(help, HasSubstr(text));
  }
  for (const std::string& line : LinesOf(help)) EXPECT_LE(line.size(), 140u) << line;
}

}  // namespace
}  // namespace nibble::server
