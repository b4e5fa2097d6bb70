#include "server/checkpoint/directory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include "fmt/format.h"
#include "server/checkpoint/quoted.h"
#include "server/checkpoint/strict_json.h"

namespace nibble::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
constexpr size_t kMaxTextBytes = size_t{100'000'000};
constexpr size_t kMaxShards = 10'000;

absl::Status InFile(std::string_view file, const absl::Status& status) {
  return absl::Status(status.code(), fmt::format("{}: {}", file, MessageOf(status)));
}

// The text of a file; empty where there is none.
absl::StatusOr<std::string> ReadText(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error) && !error) return std::string();
  if (!fs::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(fmt::format("{}: not a regular file", path.string()));
  }
  const uintmax_t size = fs::file_size(path, error);
  if (error || size == 0 || size > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        fmt::format("{}: expected 1 to {} bytes, received {}", path.string(), kMaxTextBytes,
                    error ? error.message() : fmt::format("{}", size)));
  }
  std::string text(static_cast<size_t>(size), '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(size))) {
    return absl::InvalidArgumentError(fmt::format("{}: cannot read", path.string()));
  }
  return text;
}

// A file name out of a JSON text must stay in its directory.
absl::Status CheckFileName(std::string_view name) {
  if (name.empty() || name == "." || name.find("..") != std::string_view::npos ||
      name.find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos) {
    return absl::InvalidArgumentError(
        fmt::format("expected a file name without a path, received {}", Quoted(name)));
  }
  return absl::OkStatus();
}

using Assignments = std::map<std::string, std::vector<std::string>>;

absl::StatusOr<Assignments> ReadIndex(std::string_view text) {
  NIBBLE_ASSIGN_OR_RETURN(const nlohmann::json index, ParseJsonObject(text, kMaxTextBytes));
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object()) {
    return absl::InvalidArgumentError("weight_map: expected an object of tensor and file names");
  }
  Assignments files;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string()) {
      return absl::InvalidArgumentError(fmt::format(
          "weight_map {}: expected a file name, received {}", Quoted(tensor), file.type_name()));
    }
    const auto& name = file.get_ref<const std::string&>();
    if (absl::Status status = CheckFileName(name); !status.ok()) {
      return InFile(fmt::format("weight_map {}", Quoted(tensor)), status);
    }
    files[name].push_back(tensor);
    if (files.size() > kMaxShards) {
      return absl::InvalidArgumentError(fmt::format("more than {} files", kMaxShards));
    }
  }
  return files;
}

absl::StatusOr<TensorMap> ReadShards(const fs::path& directory, std::string_view index_text,
                                     Notices* notices) {
  const std::string index_path = (directory / kIndexName).string();
  absl::StatusOr<Assignments> files = ReadIndex(index_text);
  if (!files.ok()) return InFile(index_path, files.status());
  TensorMap tensors;
  for (const auto& [file, names] : *files) {
    const std::string path = (directory / file).string();
    absl::StatusOr<SafetensorsFile> shard = SafetensorsFile::Open(path);
    if (shard.status().code() == absl::StatusCode::kNotFound) {
      return absl::InvalidArgumentError(
          fmt::format("{}: file {} is missing", index_path, Quoted(file)));
    }
    if (!shard.ok()) return shard.status();
    for (const std::string& name : names) {
      const TensorEntry* entry = shard->Find(name);
      if (entry == nullptr) {
        return absl::InvalidArgumentError(
            fmt::format("{}: tensor {} is not in {}", index_path, Quoted(name), Quoted(file)));
      }
      tensors.emplace(name, *entry);
    }
    if (shard->tensors().size() > names.size()) {
      notices->Add("file holds tensors that the index does not assign to it, left out", path);
    }
  }
  return tensors;
}

// The one file of a directory without an index.
absl::StatusOr<std::string> SingleFile(const fs::path& directory, const QuantConfig& config,
                                       Notices* notices) {
  std::error_code error;
  if (fs::exists(directory / kSingleName, error)) return std::string(kSingleName);
  const std::string& base = config.model_file_base_name;
  if (!base.empty() && CheckFileName(base).ok() &&
      fs::exists(directory / (base + ".safetensors"), error)) {
    return base + ".safetensors";
  }
  std::vector<std::string> found;
  bool gguf = false;
  fs::directory_iterator it(directory, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const fs::path& path = it->path();
    if (path.extension() == ".safetensors") found.push_back(path.filename().string());
    gguf = gguf || path.extension() == ".gguf";
  }
  if (error) {
    return absl::InvalidArgumentError(
        fmt::format("{}: cannot list: {}", directory.string(), error.message()));
  }
  if (found.size() == 1) {
    notices->Add("file is taken for model.safetensors", found[0]);
    return found[0];
  }
  if (found.empty() && gguf) {
    return InFile(directory.string(),
                  Refused("GGUF", "the safetensors checkpoint of the same model is"));
  }
  if (found.empty()) {
    return absl::NotFoundError(fmt::format("{}: holds no safetensors file", directory.string()));
  }
  return absl::InvalidArgumentError(fmt::format("{}: {} safetensors files, but neither {} nor {}",
                                                directory.string(), found.size(), kSingleName,
                                                kIndexName));
}

}  // namespace

absl::StatusOr<ConfigTexts> ReadConfigTexts(const std::string& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return absl::NotFoundError(fmt::format("{}: not a directory", directory));
  }
  ConfigTexts texts;
  const fs::path root(directory);
  NIBBLE_ASSIGN_OR_RETURN(texts.config, ReadText(root / "config.json"));
  NIBBLE_ASSIGN_OR_RETURN(texts.quantize_config, ReadText(root / "quantize_config.json"));
  NIBBLE_ASSIGN_OR_RETURN(texts.quant_config, ReadText(root / "quant_config.json"));
  return texts;
}

absl::StatusOr<TensorMap> ReadDirectory(const std::string& directory, const QuantConfig& config,
                                        Notices* notices) {
  const fs::path root(directory);
  NIBBLE_ASSIGN_OR_RETURN(const std::string index, ReadText(root / kIndexName));
  if (!index.empty()) return ReadShards(root, index, notices);
  NIBBLE_ASSIGN_OR_RETURN(const std::string name, SingleFile(root, config, notices));
  NIBBLE_ASSIGN_OR_RETURN(const SafetensorsFile file,
                          SafetensorsFile::Open((root / name).string()));
  return TensorMap(file.tensors().begin(), file.tensors().end());
}

}  // namespace nibble::checkpoint
