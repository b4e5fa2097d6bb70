#include "server/loader/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "fmt/format.h"
#include "nibble/quantize.h"
#include "nibble/status.h"
#include "tests/support/fake_device.h"

namespace nibble::server {
namespace {

namespace fs = std::filesystem;
using ::nibble::testing::FakeDevice;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Layers of the caller's choice; loading one of them can be made to fail.
class FakeCheckpoint : public checkpoint::Checkpoint {
 public:
  explicit FakeCheckpoint(int layers) {
    for (int i = 0; i < layers; ++i) {
      checkpoint::Layer layer;
      layer.name = fmt::format("layer{}", i);
      layer.spec.format = Format::kDense;
      layer.spec.dtype = DType::kF32;
      layer.spec.n = 2;
      layer.spec.k = 3;
      layer.bytes = 24;
      layers_.push_back(layer);
    }
  }
  const std::vector<checkpoint::Layer>& layers() const override { return layers_; }
  const std::vector<std::string>& notices() const override { return notices_; }
  absl::StatusOr<CanonicalWeight> Load(size_t index) const override {
    if (index == failing) return absl::DataLossError("the file was cut");
    CanonicalWeight weight;
    weight.spec = layers_[index].spec;
    weight.codes = HostBytes(std::vector<std::byte>(24));
    return weight;
  }

  void Release(size_t) const override {}

  absl::Status CheckIntact() const override {
    return cut ? absl::InvalidArgumentError("the file was cut") : absl::OkStatus();
  }

  size_t failing = SIZE_MAX;
  bool cut = false;

 private:
  std::vector<checkpoint::Layer> layers_;
  std::vector<std::string> notices_ = {"one thing worth a look"};
};

class LoaderTest : public ::testing::Test {
 protected:
  LoaderTest() : device_("cpu:0", 1000), store_({&device_}, nullptr) {}

  absl::StatusOr<Loaded> Load(const checkpoint::Checkpoint& from) {
    return LoadCheckpoint(
        store_, from, {"m", ""},
        [this](const LoadProgress& progress) {
          progress_.push_back(progress);
          if (static_cast<int>(progress_.size()) == cancel_after_) cancelled_ = true;
        },
        cancelled_);
  }

  FakeDevice device_;
  WeightStore store_;
  std::vector<LoadProgress> progress_;
  std::atomic<bool> cancelled_{false};
  int cancel_after_ = 0;
};

TEST_F(LoaderTest, LoadsEveryLayerAndReportsBytes) {
  const auto loaded = Load(FakeCheckpoint(3));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->weights, ElementsAre("m/layer0", "m/layer1", "m/layer2"));
  EXPECT_THAT(loaded->notices, ElementsAre("one thing worth a look"));
  EXPECT_EQ(loaded->bytes, 72);
  ASSERT_GE(progress_.size(), 4u);
  for (size_t i = 0; i < progress_.size(); ++i) {
    EXPECT_EQ(progress_[i].bytes_done, 24 * progress_[i].layers_done);
    EXPECT_EQ(progress_[i].bytes_total, 72);
    EXPECT_GE(progress_[i].layers_done, i == 0 ? 0 : progress_[i - 1].layers_done);
  }
  EXPECT_EQ(progress_[0].layer, "layer0");
  EXPECT_EQ(progress_[1].layer, "layer1");
  EXPECT_EQ(progress_.back().layers_done, 3);
  EXPECT_EQ(progress_.back().layer, "");
  EXPECT_TRUE(store_.Acquire("m/layer2").ok());
}

TEST_F(LoaderTest, AFailedLayerLeavesNothing) {
  FakeCheckpoint broken(3);
  broken.failing = 2;
  const auto loaded = Load(broken);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(device_.memory().used_bytes, 0u);
  const auto refused = store_.Acquire("m/layer0");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(MessageOf(refused.status())), HasSubstr("the file was cut"));
}

TEST_F(LoaderTest, AFileThatWasCutMeanwhileLeavesNothing) {
  FakeCheckpoint broken(3);
  broken.cut = true;
  EXPECT_EQ(Load(broken).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device_.memory().used_bytes, 0u);
  EXPECT_FALSE(store_.Acquire("m/layer0").ok());
}

TEST_F(LoaderTest, ACancelEndsTheLoadAtTheNextLayer) {
  cancel_after_ = 2;
  EXPECT_EQ(Load(FakeCheckpoint(5)).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(progress_.size(), 2u);
  EXPECT_EQ(device_.memory().used_bytes, 0u);
}

TEST_F(LoaderTest, ACheckpointWithoutLayersIsRefused) {
  EXPECT_EQ(Load(FakeCheckpoint(0)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LoaderTest, AMatrixIsQuantizedUnderItsName) {
  const std::vector<float> values(6, 1.5f);
  WeightSpec format;
  format.format = Format::kInt4;
  format.n = 2;
  format.k = 3;
  format.group_size = 3;
  const auto loaded =
      LoadMatrix(store_, MakeConstView(values.data(), DType::kF32, 2, 3), {format, {}}, {"up", ""});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->weights, ElementsAre("up"));
  EXPECT_EQ(store_.Acquire("up").value()->weight().spec().format, Format::kInt4);
}

class RootTest : public ::testing::Test {
 protected:
  RootTest() {
    base_ = fs::path(::testing::TempDir()) / fmt::format("nibble-root-{}", getpid());
    fs::create_directories(base_ / "root" / "models" / "a");
    fs::create_directories(base_ / "root2");
    fs::create_directory_symlink(base_ / "root2", base_ / "root" / "out");
    fs::create_directory_symlink("models", base_ / "root" / "in");
  }
  ~RootTest() override { fs::remove_all(base_); }

  absl::StatusOr<std::string> Resolve(const std::string& path) {
    return ResolveBelowRoot((base_ / "root").string(), path);
  }
  fs::path base_;
};

TEST_F(RootTest, DirectoriesBelowTheRootAreFound) {
  for (const char* path : {"models/a", "./models/../models/a", "in/a", "."}) {
    const auto resolved = Resolve(path);
    ASSERT_TRUE(resolved.ok()) << path << ": " << resolved.status();
    EXPECT_THAT(*resolved, HasSubstr("root"));
  }
}

TEST_F(RootTest, NothingOutsideIsReached) {
  for (const char* path : {"..", "../root2", "/", "/etc", "out", "out/x", "models/../../root2",
                           "models/../../../../../../etc"}) {
    EXPECT_EQ(Resolve(path).status().code(), absl::StatusCode::kPermissionDenied) << path;
  }
}

TEST_F(RootTest, APathWithAZeroByteIsRefused) {
  for (const std::string& path : {std::string("models\0", 7), std::string("none/..\0/..\0", 12)}) {
    EXPECT_EQ(Resolve(path).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(RootTest, WhatIsMissingIsNamed) {
  EXPECT_EQ(Resolve("models/b").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ResolveBelowRoot("", "models").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ResolveBelowRoot((base_ / "none").string(), "models").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace nibble::server
