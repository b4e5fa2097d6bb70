#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/client/cli_fixture.h"

namespace nibble {
namespace {

using testing::CliTest;
using ::testing::HasSubstr;
using testing::Outcome;
using ::testing::StartsWith;

// One line on stderr, nothing on stdout.
void ExpectUsageError(const Outcome& outcome, const std::string& part) {
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, StartsWith("nibble: USAGE: "));
  EXPECT_THAT(outcome.err, HasSubstr(part));
  EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1);
}

TEST_F(CliTest, WrongUsageNamesTheFlag) {
  ExpectUsageError(RunBare({}), "subcommand");
  ExpectUsageError(RunBare({"lsit"}), "lsit: unknown command; the nearest is list");
  ExpectUsageError(RunBare({"list", "--sever", "a:1"}),
                   "--sever: unknown flag; the nearest is --server");
  ExpectUsageError(RunBare({"matmul", "w", "--inn=x"}), "--inn: unknown flag; the nearest is --in");
  ExpectUsageError(RunBare({"matmul", "--in", "x"}), "WEIGHT");
  ExpectUsageError(RunBare({"matmul", "w"}), "--in");
  ExpectUsageError(RunBare({"matmul", "w", "--in", "x", "--output-dtype", "i8"}),
                   "--output-dtype: expected one of bf16, f16, f32; received i8");
  ExpectUsageError(RunBare({"matmul", "w", "--in", "x", "--rows", "many"}), "--rows");
  ExpectUsageError(RunBare({"matmul", "w", "--in", "x", "--weight-file", "f"}), "--weight-file");
  for (const char* range : {"3", "3:1", "a:b", "-1:2", "2:2"}) {
    ExpectUsageError(RunBare({"dequant", "w", "--rows", range}), "--rows: expected A:B");
  }
  ExpectUsageError(RunBare({"list", "--deadline-ms", "-1"}), "--deadline-ms");
  ExpectUsageError(RunBare({"upload", "n"}), "--checkpoint");
  ExpectUsageError(RunBare({"upload", "n", "--matrix", "f"}), "--format");
  ExpectUsageError(RunBare({"upload", "n", "--matrix", "f", "--format", "nf5"}), "received nf5");
  ExpectUsageError(RunBare({"explain"}), "WEIGHT");
  ExpectUsageError(RunBare({"explain", "--format", "nf4"}), "--n and --k");
  ExpectUsageError(RunBare({"norm-quant", "--in", "x"}), "--gamma-weight");
  ExpectUsageError(RunBare({"silu-mul-quant", "--in", "x", "--quant", "static"}), "--static-scale");
  ExpectUsageError(RunBare({"bench", "--weight", "w", "--seconds", "1", "--requests", "1"}),
                   "--requests");
}

TEST_F(CliTest, EveryCommandHasHelp) {
  for (const char* command :
       {"list", "describe", "load", "upload", "unload", "matmul", "dequant", "norm-quant",
        "silu-mul-quant", "explain", "health", "bench", "quantize"}) {
    const Outcome outcome = RunBare({command, "--help"});
    EXPECT_EQ(outcome.code, 0) << command;
    EXPECT_THAT(outcome.out, HasSubstr("Usage: nibble " + std::string(command)));
    EXPECT_EQ(outcome.err, "");
  }
  const Outcome all = RunBare({"--help"});
  EXPECT_THAT(all.out, HasSubstr("silu-mul-quant"));
  EXPECT_THAT(all.out, HasSubstr("--tls-ca"));
  EXPECT_THAT(RunBare({"--version"}).out, StartsWith("nibble 0."));
}

TEST_F(CliTest, AnErrorOfTheServerIsOneLine) {
  const Outcome outcome = Run({"describe", "none"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "nibble: NOT_FOUND: weight: no weight named \"none\"\n");
  server_.FailNext("List", {grpc::Status(grpc::StatusCode::INTERNAL, "first\nsecond")});
  EXPECT_EQ(Run({"list"}).err, "nibble: INTERNAL: first; second\n");
}

TEST_F(CliTest, ListAlignsItsColumns) {
  server_.AddWeight("a-longer-name", testing::MakeWeight(1, 2048));
  EXPECT_EQ(Run({"list"}).out,
            "NAME           VERSION  STATE  FORMAT               N     K     SIZE  DEVICE  ERROR\n"
            "a-longer-name        3  ready  nf4 block 64 nested  1  2048  4.0 KiB  cpu:0\n"
            "w                    3  ready  nf4 block 64 nested  7     8    112 B  cpu:0\n"
            "2 weights, 4.1 KiB\n");
  const cli::Json json = Run({"--json", "list", "--prefix", "w"}).json();
  ASSERT_EQ(json["weights"].size(), 1u);
  EXPECT_EQ(json["weights"][0]["format"]["block_size"], 64);
  EXPECT_EQ(json["weights"][0]["device_bytes"], 112);
}

TEST_F(CliTest, Describe) {
  EXPECT_THAT(Run({"describe", "w"}).out, HasSubstr("shape        [7, 8]\n"));
  const cli::Json json = Run({"describe", "w", "--json"}).json();
  EXPECT_EQ(json["k"], 8);
  EXPECT_EQ(json["counters"]["requests"], 41);
  EXPECT_EQ(json["kernels"][0]["kernel"], "fake_gemm");
}

TEST_F(CliTest, ExplainAResidentAndAHypotheticalWeight) {
  EXPECT_EQ(Run({"explain", "w", "--max-m", "64"}).out,
            "cpu:0: a fake device\n"
            "    M  KERNEL     TILE MxNxK  SPLIT-K  SOURCE    PREDICTED US  MEASURED US\n"
            " 1..4  fake_gemv  0x0x0             2  measured      1.5..2.5    9.0..12.0\n"
            "5..64  fake_gemm  16x64x0           0  table                -            -\n"
            "\n"
            "MEASURED M  fake_gemv us  fake_gemm us\n"
            "         1           9.0          20.0\n"
            "         4          12.0             -\n");
  const cli::Json json = Run({"explain", "--format", "int4", "--n", "4096", "--k", "14336",
                              "--group-size", "64", "--device", "cuda:1", "--json"})
                             .json();
  EXPECT_EQ(json["device"], "cuda:1");
  EXPECT_EQ(json["kernels"][0]["source"], "measured");
  EXPECT_EQ(json["kernels"][0]["measured_end_us"], 12.0);
  EXPECT_EQ(json["kernels"][1]["tile_k"], 14336);
  EXPECT_FALSE(json["kernels"][1].contains("measured_end_us"));
  EXPECT_EQ(json["measured"][0]["us"]["fake_gemm"], 20.0);
}

TEST_F(CliTest, LoadShowsProgressOnStderrAlone) {
  const Outcome outcome = Run({"load", "m", "dir", "--json"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.json()["bytes"], 1024);
  EXPECT_EQ(outcome.json()["notices"][0], "left out: dir/lm_head");
  EXPECT_EQ(outcome.err,
            "load m  50 %  512 B of 1.0 KiB  layer 1/2 layer.1\n"
            "load m 100 %  1.0 KiB of 1.0 KiB  layer 2/2 layer.2\n"
            "notice: left out: dir/lm_head\n");
  EXPECT_EQ(Run({"load", "m", "dir"}).out, "loaded m: 2 layers, 1.0 KiB\n");
}

TEST_F(CliTest, UploadACheckpoint) {
  const std::string config = WriteText("config.json", "{\"a\":1}");
  const std::string file = WriteText("model.safetensors", std::string(5000, 'x'));
  const Outcome outcome = Run({"upload", "m", "--checkpoint", file, "--config", config});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "ready m\n");
  ASSERT_EQ(server_.uploads().size(), 1u);
  EXPECT_EQ(server_.uploads()[0].header.checkpoint().config_json(), "{\"a\":1}");
  EXPECT_EQ(server_.uploads()[0].bytes.size(), 5000u);
}

TEST_F(CliTest, LayersAreSelectedAndFused) {
  const std::string file = WriteText("model.safetensors", "x");
  const Outcome outcome = Run({"upload", "m", "--checkpoint", file, "--fuse", "where-possible",
                               "--layers", "a", "--layers", "b.*"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  ASSERT_EQ(server_.uploads().size(), 1u);
  const v1::CheckpointUpload upload = server_.uploads()[0].header.checkpoint();
  EXPECT_EQ(upload.fuse(), v1::FUSE_WHERE_POSSIBLE);
  ASSERT_EQ(upload.layers_size(), 2);
  EXPECT_EQ(upload.layers(1), "b.*");
  EXPECT_EQ(Run({"load", "m", "dir", "--fuse", "required", "--layers", "a"}).code, 0);
  ExpectUsageError(RunBare({"load", "m", "dir", "--fuse", "some"}), "required");
  ExpectUsageError(RunBare({"upload", "m", "--matrix", file, "--format", "nf4", "--layers", "a"}),
                   "--layers");
}

TEST_F(CliTest, InspectNeedsNoServer) {
  const std::string golden = std::string(NIBBLE_SOURCE_DIR) + "/tests/golden/awq_group_64_bias";
  const Outcome outcome = RunBare({"inspect", golden});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("model.layers.0.mlp.down_proj  awq"), std::string::npos)
      << outcome.out;
  const cli::Json json = RunBare({"inspect", golden, "--json"}).json();
  EXPECT_EQ(json["layers"][0]["n"], 64);
  EXPECT_EQ(json["layers"][0]["served"], true);

  // A layer that cannot be served is listed with the reason, and the exit code says so.
  std::filesystem::create_directory(Path("fp8"));
  ASSERT_TRUE(
      cli::WriteTensors(
          Path("fp8") + "/model.safetensors",
          {{"m.weight", client::TensorFromFloats(Values(8), {2, 4}, v1::DTYPE_F8_E4M3).value()}})
          .ok());
  const Outcome refused = RunBare({"inspect", Path("fp8"), "--json"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_EQ(refused.json()["layers"][0]["served"], false);
  EXPECT_NE(refused.json()["layers"][0]["refusal"].get<std::string>().find("weight_scale"),
            std::string::npos);
  EXPECT_EQ(RunBare({"inspect", Path("none")}).code, 1);
}

TEST_F(CliTest, UploadAMatrix) {
  const std::string file = WriteTensor("m", "t", Values(64), {4, 16}, v1::DTYPE_F16);
  const Outcome outcome = Run({"upload", "w2", "--matrix", file, "--tensor", "t", "--format",
                               "INT4", "--group-size", "-1", "--zero-points", "--device", "cpu:1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  ASSERT_EQ(server_.uploads().size(), 1u);
  const v1::UploadHeader header = server_.uploads()[0].header;
  EXPECT_EQ(header.device(), "cpu:1");
  EXPECT_EQ(header.total_bytes(), 128);
  EXPECT_EQ(header.matrix().dtype(), v1::DTYPE_F16);
  EXPECT_EQ(header.matrix().target().format(), v1::WEIGHT_FORMAT_INT4);
  EXPECT_EQ(header.matrix().target().group_size(), -1);
  EXPECT_TRUE(header.matrix().target().zero_points());
}

TEST_F(CliTest, FilesThatDoNotFitAreErrors) {
  const std::string file = WriteTensor("m", "t", Values(4), {2, 2}, v1::DTYPE_F32);
  EXPECT_THAT(Run({"matmul", "w", "--in", file}).err,
              HasSubstr("no tensor \"x\"; it has 1 tensors: t"));
  EXPECT_EQ(Run({"matmul", "w", "--in", Path("none")}).code, 1);
  EXPECT_EQ(Run({"matmul", "w", "--in", WriteText("junk", "not safetensors")}).code, 1);
  EXPECT_EQ(Run({"upload", "m", "--checkpoint", Path("none")}).code, 1);
  EXPECT_EQ(Run({"list", "--token-file", WriteText("token", "\n\n")}).code, 1);
  EXPECT_EQ(Run({"list", "--tls-ca", Path("none")}).code, 1);
}

TEST_F(CliTest, Unload) {
  EXPECT_EQ(Run({"unload", "w"}).out, "unloaded w: 1 weight, 112 B freed\n");
  EXPECT_EQ(Run({"unload", "w", "--json"}).json()["freed_bytes"], 112);
}

TEST_F(CliTest, TheTokenComesFromTheFilesFirstLine) {
  const std::string token = WriteText("token", "secret-1 \nsecret-2\n");
  EXPECT_EQ(Run({"list", "--token-file", token}).code, 0);
  EXPECT_EQ(server_.authorization(), "Bearer secret-1");
}

TEST_F(CliTest, AddressesComeFromTheEnvironment) {
  setenv("NIBBLE_SERVER", server_.address().c_str(), 1);
  setenv("NIBBLE_CONTROL", server_.address().c_str(), 1);
  EXPECT_EQ(RunBare({"health"}).code, 0);
  EXPECT_EQ(RunBare({"list"}).code, 0);
  unsetenv("NIBBLE_SERVER");
  unsetenv("NIBBLE_CONTROL");
}

TEST_F(CliTest, HealthExitsZeroOnlyWhenServing) {
  using Wire = grpc::health::v1::HealthCheckResponse;
  EXPECT_EQ(Run({"health"}).out, "SERVING\n");
  EXPECT_EQ(Run({"health", "--service", "unknown"}).code, 1);
  server_.SetHealth({Wire::NOT_SERVING});
  const Outcome outcome = Run({"health", "--json"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.json()["status"], "NOT_SERVING");
  server_.SetHealth({Wire::NOT_SERVING, Wire::SERVING});
  EXPECT_EQ(Run({"health", "--wait"}).out, "SERVING\n");
  EXPECT_EQ(Run({"health", "--watch"}).code, 0);
  server_.SetHealth({Wire::SERVING, Wire::NOT_SERVING});
  const Outcome watched = Run({"health", "--watch"});
  EXPECT_EQ(watched.code, 1);
  EXPECT_EQ(watched.out, "SERVING\nNOT_SERVING\n");
}

TEST_F(CliTest, BenchCountsEveryCall) {
  const cli::Json json = Run({"bench", "--weight", "w", "--rows", "3", "--concurrency", "2",
                              "--requests", "40", "--json"})
                             .json();
  EXPECT_EQ(json["calls"], 40);
  EXPECT_EQ(json["k"], 8);
  EXPECT_EQ(json["kernels"]["fake_gemm"], 40);
  EXPECT_EQ(json["mean_queue_us"], 7.0);
  EXPECT_EQ(json["mean_batch_rows"], 3.0);
  EXPECT_LE(json["latency_us"]["p50"], json["latency_us"]["max"]);
  EXPECT_EQ(server_.calls("Matmul"), 42);
}

TEST_F(CliTest, BenchReportsErrorsByCode) {
  std::vector<grpc::Status> statuses(5, grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full"));
  statuses.insert(statuses.begin(), grpc::Status::OK);
  server_.FailNext("Matmul", statuses);
  const cli::Json json = Run({"bench", "--weight", "w", "--requests", "10", "--json"}).json();
  EXPECT_EQ(json["calls"], 5);
  EXPECT_EQ(json["errors"]["RESOURCE_EXHAUSTED"], 5);
  EXPECT_EQ(Run({"bench", "--weight", "none", "--k", "8", "--requests", "10"}).err,
            "nibble: NOT_FOUND: weight: no weight named \"none\"\n");
}

}  // namespace
}  // namespace nibble
