// Small checkpoints made in a test, tensor by tensor.
#ifndef NIBBLE_TESTS_UNIT_CHECKPOINT_CHECKPOINT_BUILDER_H_
#define NIBBLE_TESTS_UNIT_CHECKPOINT_CHECKPOINT_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "nibble/numeric.h"
#include "nibble/weight.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/safetensors.h"

namespace nibble::checkpoint {

class CheckpointBuilder {
 public:
  template <typename T>
  CheckpointBuilder& Add(const std::string& name, std::string dtype, std::vector<int64_t> shape,
                         const std::vector<T>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    tensors_[name] = {std::move(dtype), std::move(shape), std::move(bytes)};
    return *this;
  }
  // `values` rounded to `dtype`: F32, F16 or BF16.
  CheckpointBuilder& AddFloats(const std::string& name, DType dtype, std::vector<int64_t> shape,
                               const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * DTypeBytes(dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      StoreFromFloat(bytes.data(), dtype, static_cast<int64_t>(i), values[i]);
    }
    return Add(name, std::string(DTypeName(dtype)), std::move(shape), bytes);
  }
  CheckpointBuilder& AddText(const std::string& name, const std::string& text) {
    return Add(name, "U8", {static_cast<int64_t>(text.size())},
               std::vector<char>(text.begin(), text.end()));
  }
  CheckpointBuilder& Remove(const std::string& name) {
    EXPECT_EQ(tensors_.erase(name), 1u) << name;
    return *this;
  }

  std::string Bytes() const {
    std::vector<TensorToWrite> list;
    for (const auto& [name, tensor] : tensors_) {
      list.push_back({name, tensor.dtype, tensor.shape, tensor.bytes});
    }
    auto bytes = SerializeSafetensors(list, {});
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.ok() ? *bytes : std::string();
  }

  // Opens the file from memory that is not aligned.
  absl::StatusOr<std::unique_ptr<Checkpoint>> Open(std::string_view config,
                                                   const OpenOptions& options = {}) const {
    const std::string bytes = Bytes();
    auto shifted = std::make_shared<std::vector<std::byte>>(bytes.size() + 1);
    std::memcpy(shifted->data() + 1, bytes.data(), bytes.size());
    const std::span<const std::byte> view(shifted->data() + 1, bytes.size());
    return Checkpoint::FromBytes(view, std::move(shifted), config, "test", options);
  }

 private:
  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Tensor> tensors_;
};

// The one layer of a checkpoint, loaded, with its decoded weight [N, K].
struct LoadedLayer {
  Layer layer;
  CanonicalWeight weight;
  std::vector<float> decoded;
  std::vector<std::string> notices;
};

inline LoadedLayer LoadOnly(const CheckpointBuilder& builder, std::string_view config) {
  LoadedLayer out;
  const auto checkpoint = builder.Open(config);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  if (!checkpoint.ok() || (*checkpoint)->layers().size() != 1) {
    ADD_FAILURE() << "expected one layer";
    return out;
  }
  out.layer = (*checkpoint)->layers()[0];
  out.notices = (*checkpoint)->notices();
  auto weight = (*checkpoint)->Load(0);
  EXPECT_TRUE(weight.ok()) << weight.status();
  if (!weight.ok()) return out;
  out.weight = *std::move(weight);
  EXPECT_EQ(out.layer.spec, out.weight.spec);
  EXPECT_TRUE(ValidateWeight(out.weight).ok());
  out.decoded.resize(static_cast<size_t>(out.weight.spec.n * out.weight.spec.k));
  const Status decoded = DecodeReference(out.weight, 0, out.weight.spec.n, out.decoded);
  EXPECT_TRUE(decoded.ok()) << decoded;
  return out;
}

// Expects equal bits.
inline void ExpectSameBits(const std::vector<float>& received, const std::vector<float>& expected) {
  ASSERT_EQ(received.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(received[i]), std::bit_cast<uint32_t>(expected[i]))
        << "element " << i << ": expected " << expected[i] << ", received " << received[i];
  }
}

inline void ExpectStatus(const absl::Status& status, absl::StatusCode code,
                         std::initializer_list<std::string_view> words) {
  EXPECT_EQ(status.code(), code) << status;
  for (std::string_view word : words) {
    EXPECT_NE(std::string(MessageOf(status)).find(word), std::string::npos)
        << "'" << word << "' is not in: " << status;
  }
}

// Expects that opening fails, with a message that holds every one of `words`.
inline void ExpectRefused(const CheckpointBuilder& builder, std::string_view config,
                          absl::StatusCode code, std::initializer_list<std::string_view> words) {
  const auto checkpoint = builder.Open(config);
  ASSERT_FALSE(checkpoint.ok());
  ExpectStatus(checkpoint.status(), code, words);
}

class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string pattern = ::testing::TempDir() + "nibble_checkpoint_XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "mkdtemp " << pattern;
    path_ = pattern;
  }
  ~ScratchDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  std::string path() const { return path_.string(); }
  std::string File(const std::string& name) const { return (path_ / name).string(); }
  void Write(const std::string& name, std::string_view text) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    EXPECT_TRUE(file.good()) << name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace nibble::checkpoint

#endif  // NIBBLE_TESTS_UNIT_CHECKPOINT_CHECKPOINT_BUILDER_H_
