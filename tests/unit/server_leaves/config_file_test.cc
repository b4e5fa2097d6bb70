// Configuration files: what they say, how they meet the flags, and what hostile ones can do.
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/config/config.h"
#include "tests/unit/server_leaves/config_support.h"

namespace nibble::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::SizeIs;
using ::testing::StartsWith;

// The faults of a file, its path cut from them.
std::string FileFaults(std::string_view text) {
  const ConfigFile file(text);
  std::string faults = FaultsOf({file.flag()});
  for (size_t at; (at = faults.find(file.path())) != std::string::npos;) {
    faults.replace(at, file.path().size(), "FILE");
  }
  return faults;
}

TEST(ConfigFileTest, YamlSetsEveryKindOfOption) {
  const ConfigFile file(
      "# a server\n"
      "listen: 127.0.0.1:7\n"
      "control_listen: \"[::1]:8\"\n"
      "max_batch_rows: 32\n"
      "max_queue_bytes: 64MiB\n"
      "max_upload_bytes: \"1GiB\"\n"
      "cpu_memory_bytes: 1000\n"
      "device: [cpu:0, 'cpu:1']\n"
      "model:\n"
      "  a/b: /models/a\n"
      "  c: \"/models/c d\"\n"
      "weights_root: ''\n");
  const absl::StatusOr<Config> config = Parse({file.flag()});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->config, file.path());
  EXPECT_THAT(config->listen, ElementsAre("127.0.0.1:7"));
  EXPECT_EQ(config->control_listen, "[::1]:8");
  EXPECT_EQ(config->max_batch_rows, 32);
  EXPECT_EQ(config->max_queue_bytes, 64u << 20);
  EXPECT_EQ(config->max_upload_bytes, 1u << 30);
  EXPECT_EQ(config->cpu_memory_bytes, 1000u);
  EXPECT_THAT(config->device, ElementsAre("cpu:0", "cpu:1"));
  ASSERT_THAT(config->model, SizeIs(2));
  EXPECT_EQ(config->model[0].name, "a/b");
  EXPECT_EQ(config->model[0].directory, "/models/a");
  EXPECT_EQ(config->model[1].name, "c");
  EXPECT_EQ(config->model[1].directory, "/models/c d");
}

TEST(ConfigFileTest, JsonIsTaken) {
  for (const char* json :
       {"{\"listen\": \"h:1\", \"max_batch_rows\": 2, \"device\": [\"cpu:0\"], \"model\": {\"a\": "
        "\"/d\\u00e9\"}}",
        "{\"listen\":\"h:1\",\"max_batch_rows\":2,\"device\":[\"cpu:0\"],\"model\":{\"a\":\"/"
        "d\\u00e9\"}}",
        "{\n  \"listen\": \"h:1\",\n  \"max_batch_rows\": 2,\n  \"device\": [\n    \"cpu:0\"\n  "
        "],\n "
        " \"model\": {\n    \"a\": \"/d\\u00e9\"\n  }\n}\n",
        "{\r\n\t\"listen\": \"h:1\",\r\n\t\"max_batch_rows\": 2,\r\n\t\"device\": "
        "[\r\n\t\t\"cpu:0\"\r\n\t],"
        "\r\n\t\"model\": {\r\n\t\t\"a\": \"/d\\u00e9\"\r\n\t}\r\n}\r\n"}) {
    const ConfigFile file(json);
    const absl::StatusOr<Config> config = Parse({file.flag()});
    ASSERT_TRUE(config.ok()) << config.status() << json;
    EXPECT_THAT(config->listen, ElementsAre("h:1"));
    EXPECT_EQ(config->max_batch_rows, 2);
    EXPECT_THAT(config->device, ElementsAre("cpu:0"));
    ASSERT_THAT(config->model, SizeIs(1));
    EXPECT_EQ(config->model[0].directory, "/dé");
  }
}

TEST(ConfigFileTest, FilesThatSayNothingAreTaken) {
  for (const char* text : {"", "\n", "# only a comment\n", "---\n", "{}", "~", "\xef\xbb\xbf"}) {
    EXPECT_EQ(FileFaults(text), "") << text;
  }
}

TEST(ConfigFileTest, FlagsWinWhereverTheyStand) {
  const ConfigFile file(
      "max_batch_rows: 1\nlog_level: warn\ndevice: [cpu:0, cpu:1]\nmodel: {a: /a, b: /b}\n");
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--max-batch-rows=2", "--device=cpu:5", "--model=c=/c", file.flag()},
           {"--config", file.path(), "--max-batch-rows=2", "--device=cpu:5", "--model=c=/c"}}) {
    const absl::StatusOr<Config> config = Parse(flags);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->max_batch_rows, 2);
    EXPECT_EQ(config->log_level, "warn");
    EXPECT_THAT(config->device, ElementsAre("cpu:5"));
    ASSERT_THAT(config->model, SizeIs(1));
    EXPECT_EQ(config->model[0].name, "c");
  }
  EXPECT_THAT(Parse({file.flag(), "--device="})->device, SizeIs(0));
}

TEST(ConfigFileTest, AFaultOfTheFileCountsUnderAFlagToo) {
  const ConfigFile file("max_batch_rows: none\n");
  EXPECT_THAT(FaultsOf({file.flag(), "--max-batch-rows=2"}), HasSubstr("received \"none\""));
}

TEST(ConfigFileTest, UnknownKeysNameTheNearest) {
  EXPECT_EQ(FileFaults("\nmax_batch_row: 2\n"),
            "FILE:2: unknown key \"max_batch_row\"; did you mean max_batch_rows?");
  EXPECT_EQ(FileFaults("max-batch-rows: 2\n"),
            "FILE:1: unknown key \"max-batch-rows\"; did you mean max_batch_rows?");
  EXPECT_EQ(FileFaults("zebra: 2\n"), "FILE:1: unknown key \"zebra\"");
  EXPECT_EQ(FileFaults("? [a]\n: 2\n"), "FILE:1: expected the name of an option, received a list");
}

TEST(ConfigFileTest, DuplicateKeysAreFaults) {
  EXPECT_EQ(FileFaults("listen: a:1\nlog_level: info\n\"listen\": a:2\n"),
            "FILE:3: \"listen\" is given twice, first on line 1");
  EXPECT_EQ(FileFaults("model:\n  a: /x\n  a: /y\n"),
            "FILE:3: model: expected each model name once, received \"a\"");
}

TEST(ConfigFileTest, FlagsThatAreNoKeys) {
  EXPECT_EQ(FileFaults("check_config: true\n"),
            "FILE:1: check_config is not an option of a file, only the flag --check-config");
  EXPECT_EQ(FileFaults("config: other.yaml\n"),
            "FILE:1: config is not an option of a file, only the flag --config");
}

TEST(ConfigFileTest, WrongTypesNameTheLine) {
  EXPECT_EQ(FileFaults("max_batch_rows: [1]\n"),
            "FILE:1: max_batch_rows: expected an integer from 1 to 1048576, received a list");
  EXPECT_EQ(FileFaults("max_batch_rows: {a: 1}\n"),
            "FILE:1: max_batch_rows: expected an integer from 1 to 1048576, received a map");
  EXPECT_EQ(FileFaults("max_batch_rows: \"12\"\n"),
            "FILE:1: max_batch_rows: expected an integer from 1 to 1048576, received the text "
            "\"12\"");
  EXPECT_EQ(FileFaults("max_batch_rows:\n"),
            "FILE:1: max_batch_rows: expected an integer from 1 to 1048576, received nothing");
  EXPECT_EQ(FileFaults("max_batch_rows: 1.5\n"),
            "FILE:1: max_batch_rows: expected an integer from 1 to 1048576, received \"1.5\"");
  EXPECT_EQ(FileFaults("max_batch_rows: true\n"),
            "FILE:1: max_batch_rows: expected an integer from 1 to 1048576, received \"true\"");
  const std::string text = "text (in quotes if it looks like a number), received ";
  EXPECT_EQ(FileFaults("weights_root: 5\n"), "FILE:1: weights_root: expected " + text + "\"5\"");
  EXPECT_EQ(FileFaults("weights_root: false\n"),
            "FILE:1: weights_root: expected " + text + "\"false\"");
  EXPECT_EQ(FileFaults("weights_root: ~\n"), "FILE:1: weights_root: expected " + text + "nothing");
  EXPECT_EQ(FileFaults("weights_root: \"5\"\n"), "");
  EXPECT_EQ(FileFaults("device: 0\n"), "FILE:1: device: expected a list, received \"0\"");
  EXPECT_EQ(FileFaults("device: cpu:0\n"), "");  // a list of one
  EXPECT_EQ(FileFaults("device:\n  - cpu:0\n  - 1\n"),
            "FILE:3: device: expected text, received \"1\"");
  EXPECT_EQ(FileFaults("model: a=/b\n"),
            "FILE:1: model: expected a map of NAME: DIR, received \"a=/b\"");
  EXPECT_EQ(FileFaults("model:\n  a: [x]\n"),
            "FILE:2: model: expected the directory of model \"a\" as text, received a list");
  EXPECT_EQ(FileFaults("model:\n  a:\n"),
            "FILE:2: model: expected the directory of model \"a\" as text, received nothing");
  EXPECT_EQ(FileFaults("- listen\n"), "FILE:1: expected a map of options, received a list");
  EXPECT_EQ(FileFaults("listen\n"), "FILE:1: expected a map of options, received \"listen\"");
}

TEST(ConfigFileTest, WholeChecksNameTheLine) {
  EXPECT_EQ(FileFaults("log_level: info\ntls_key: k.pem\n"),
            "FILE:2: tls_key: expected tls_cert with it, received \"k.pem\" alone");
  EXPECT_EQ(FileFaults("max_batch_rows: 200\nmax_queue_rows: 100\n"),
            "FILE:1: max_batch_rows: expected at most max_queue_rows, which is 100, received 200");
}

TEST(ConfigFileTest, FaultsOfFileAndFlagsComeTogether) {
  const ConfigFile file("bogus: 1\nmax_batch_rows: x\n");
  const std::string faults = FaultsOf({"--nonsense=3", file.flag(), "--log-level=loud"});
  EXPECT_THAT(faults, AllOf(HasSubstr("nonsense"), HasSubstr("bogus"), HasSubstr(":2: max_batch"),
                            HasSubstr("loud")));
}

TEST(ConfigFileTest, FilesThatCannotBeReadAreFaults) {
  EXPECT_EQ(FaultsOf({"--config=/nonexistent/f.yaml"}),
            "--config: expected a file that can be read, received \"/nonexistent/f.yaml\" (No such "
            "file or directory)");
  EXPECT_EQ(FaultsOf({"--config=/"}),
            "--config: expected a file that can be read, received \"/\" (Is a directory)");
  EXPECT_THAT(FaultsOf({"--config="}), StartsWith("--config: expected a file"));
}

TEST(ConfigFileTest, FilesWithoutEndAreNotReadToIt) {
  EXPECT_EQ(FaultsOf({"--config=/dev/zero"}),
            "/dev/zero: expected a file of at most 1048576 bytes, received a larger one");
}

TEST(ConfigFileTest, BrokenSyntaxNamesTheLine) {
  EXPECT_THAT(FileFaults("listen: a:1\nlog_level: [\n"), StartsWith("FILE:3: not a config"));
  EXPECT_THAT(FileFaults("{\"listen\": \"a:1\""), StartsWith("FILE:1: not a config"));
  EXPECT_THAT(FileFaults("listen: \"a\n"), StartsWith("FILE:"));
  EXPECT_THAT(FileFaults("a: b: c\n"), StartsWith("FILE:1: not a config"));
  EXPECT_THAT(FileFaults("%YAML 9.9.9\n---\n"), StartsWith("FILE:1: not a config"));
  EXPECT_THAT(FileFaults("listen: [::1]:50051\n"), StartsWith("FILE:1: "));
  EXPECT_EQ(FileFaults("listen: a:1\n---\nlisten: b:2\n"),
            "FILE: expected one document, received several");
}

TEST(ConfigFileTest, AnchorsAliasesTagsAndMergesAreRefused) {
  EXPECT_EQ(FileFaults("device: &a [cpu:0]\n"),
            "FILE:1: not a configuration: anchors are not taken");
  EXPECT_THAT(FileFaults("device: *a\n"), StartsWith("FILE:1: not a configuration: "));
  EXPECT_EQ(FileFaults("max_batch_rows: !!int 5\n"),
            "FILE:1: not a configuration: tags are not taken");
  EXPECT_EQ(FileFaults("<<: {max_batch_rows: 5}\n"), "FILE:1: unknown key \"<<\"");
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c <= 'z'; ++c) {
    bomb += c;
    bomb += ": &";
    bomb += c;
    bomb += " [";
    for (int i = 0; i < 9; ++i) {
      bomb += i == 0 ? "*" : ", *";
      bomb += static_cast<char>(c - 1);
    }
    bomb += "]\n";
  }
  EXPECT_EQ(FileFaults(bomb), "FILE:1: not a configuration: anchors are not taken");
}

TEST(ConfigFileTest, DeepNestingIsRefused) {
  for (const char* opening : {"[", "{", "- ", "? ", "{a: ", "[[", "{? "}) {
    std::string text("device: ");
    if (opening[0] == '-' || opening[0] == '?') text.clear();
    while (text.size() < 200000) text += opening;
    EXPECT_THAT(FileFaults(text), StartsWith("FILE:1: not a configuration: ")) << opening;
  }
  EXPECT_EQ(FileFaults("device: [[[[[[[[a]]]]]]]]\n"),
            "FILE:1: not a configuration: nested deeper than 8 levels");
}

TEST(ConfigFileTest, LargeFilesAreBoundedInWhatTheySay) {
  std::string keys;
  for (int i = 0; keys.size() < 300000; ++i) {
    keys.append("max_batch_").append(std::to_string(i)).append(": 1\n");
  }
  EXPECT_THAT(FileFaults(keys).size(), Lt(10000u));
  EXPECT_THAT(FileFaults(std::string(1 << 20, 'k').append(": 1\n")),
              HasSubstr("expected a file of at most"));
  EXPECT_THAT(FileFaults(std::string(1000, 'k').append(": 1\n")).size(), Lt(400u));
  EXPECT_THAT(FileFaults(std::string("weights_root: \"").append(500000, 'w').append("\"\n")), "");
}

TEST(ConfigFileTest, BinaryFilesAreRefused) {
  EXPECT_EQ(FileFaults(std::string_view("listen: a\0b:1\n", 14)),
            "FILE:1: expected UTF-8 text, received the byte 0x00");
  EXPECT_EQ(FileFaults("listen: a:1\nlog_level: \xff\n"),
            "FILE:2: expected UTF-8 text, received the byte 0xff");
  EXPECT_EQ(FileFaults("\x7f"
                       "ELF\x02\x01\x01\x80"),
            "FILE:1: expected UTF-8 text, received the byte 0x80");
}

// Any bytes whatever end in a configuration or in faults.
TEST(ConfigFileTest, RandomFilesEndInAnAnswer) {
  std::mt19937 random(7);
  const std::string alphabet = "abcdevilmxr_:-?[]{}&*!|>%@'\"#, \n\t0123456789~<\\/\xc3\xa9";
  for (int round = 0; round < 3000; ++round) {
    std::string text = round % 2 == 0 ? "device: " : "";
    const size_t size = random() % 60;
    for (size_t i = 0; i < size; ++i) text += alphabet[random() % alphabet.size()];
    const std::string faults = FileFaults(text);
    EXPECT_THAT(faults.size(), Lt(20000u)) << text;
  }
}

TEST(ConfigFileTest, ToYamlIsReadBack) {
  Config config;
  config.listen = {"unix:/run/a \"b\".sock", "h:1"};
  config.control_listen = "[::1]:9";
  config.metrics_listen = "";
  config.port_file = std::string("line\nbreak\t\x01\x7f\xc2\x85\xe2\x80\xa8\xef\xbb\xbf: # '\\");
  config.backend = "cpu";
  config.device = {"cpu:1", "cpu:0"};
  config.cpu_devices = 3;
  config.cpu_threads = 2;
  config.cpu_memory_bytes = 12345;
  config.autotune = true;
  config.autotune_cache = "t.json";
  config.autotune_budget_ms = 9;
  config.autotune_memory_bytes = uint64_t{1} << 21;
  config.weights_root = "true";
  config.model = {{"b", "/z"}, {"7", " lead"}, {"a/b", "é"}};
  config.quantize = {"b=nf4+nested", "a/b=fp8"};
  config.max_upload_bytes = uint64_t{1} << 40;
  config.max_concurrent_upload_bytes = 77;
  config.allow_shared_memory = true;
  config.max_shared_memory_bytes = 4096;
  config.enable_echo = true;
  config.max_message_bytes = 2047;
  config.max_streams_per_connection = 3;
  config.max_transport_bytes = uint64_t{1} << 33;
  config.handshake_timeout_ms = 7;
  config.stall_timeout_ms = 8;
  config.max_batch_rows = 17;
  config.max_queue_rows = 18;
  config.max_queue_bytes = 1;
  config.max_queue_delay_us = 250;
  config.contended_batch_us = 251;
  config.batches_in_flight = 4;
  config.drain_grace_ms = 0;
  config.drain_timeout_ms = 1;
  config.tls_cert = "~";
  config.tls_key = "5";
  config.tls_client_ca = "null";
  config.data_token_file = "d";
  config.control_token_file = "c";
  config.log_level = "error";
  const std::string yaml = ToYaml(config);
  const ConfigFile file(yaml);
  const absl::StatusOr<Config> read = Parse({file.flag()});
  ASSERT_TRUE(read.ok()) << read.status() << "\n" << yaml;
  EXPECT_EQ(ToYaml(*read), yaml);
  EXPECT_EQ(read->port_file, config.port_file);
  EXPECT_EQ(read->device, config.device);
  EXPECT_EQ(read->quantize, config.quantize);
  EXPECT_EQ(read->cpu_memory_bytes, config.cpu_memory_bytes);
  EXPECT_EQ(read->max_upload_bytes, config.max_upload_bytes);
  EXPECT_EQ(read->drain_grace_ms, 0);
  ASSERT_THAT(read->model, SizeIs(3));
  EXPECT_EQ(read->model[1].name, "7");
  EXPECT_EQ(read->model[1].directory, " lead");
  EXPECT_EQ(read->tls_client_ca, "null");
}

}  // namespace
}  // namespace nibble::server
