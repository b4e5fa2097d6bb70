// A directory that is filled beside its place and moved there whole.
#ifndef NIBBLE_SERVER_TOOLS_OUTPUT_DIRECTORY_H_
#define NIBBLE_SERVER_TOOLS_OUTPUT_DIRECTORY_H_

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble::tools {

class OutputDirectory {
 public:
  // Creates the directory to fill. `input` is read meanwhile: kInvalidArgument where `path` is it
  // or holds it. kAlreadyExists: something is at `path`, unless `force` is set and it is an empty
  // directory or one with a safetensors file. kUnavailable: the directory cannot be created.
  static absl::StatusOr<OutputDirectory> Create(const std::string& path, const std::string& input,
                                                bool force);
  OutputDirectory(OutputDirectory&& other) noexcept;
  OutputDirectory& operator=(OutputDirectory&&) = delete;
  // Removes what was not published.
  ~OutputDirectory();

  std::string FileName(std::string_view name) const { return (filling_ / name).string(); }
  absl::Status WriteText(std::string_view name, std::string_view text) const;
  // Copies the files of `input` that belong to a model and are no weights: not those with an ending
  // of a weights' container, nor hidden ones, nor `except`. Returns what was left out.
  absl::StatusOr<std::vector<std::string>> CopyOthers(const std::string& input,
                                                      std::string_view except) const;
  // Moves the directory to its place, and what was there away.
  absl::Status Publish();

 private:
  OutputDirectory(std::filesystem::path path, std::filesystem::path filling)
      : path_(std::move(path)), filling_(std::move(filling)) {}

  std::filesystem::path path_;
  std::filesystem::path filling_;  // empty once published
};

}  // namespace nibble::tools

#endif  // NIBBLE_SERVER_TOOLS_OUTPUT_DIRECTORY_H_
