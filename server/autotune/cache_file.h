// The file that measurements outlive the server in: JSON,
//   {format, build, devices: [{name, kind, cores, compute_capability, driver,
//     weights: [{weight: {...}, input, output, activation, rows: [{m, us: {KERNEL: TIME,
//     ...}}]}]}]}
#ifndef NIBBLE_SERVER_AUTOTUNE_CACHE_FILE_H_
#define NIBBLE_SERVER_AUTOTUNE_CACHE_FILE_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nibble/measured.h"

namespace nibble::server {

// Devices for which one's measurements hold for the other.
struct DeviceIdentity {
  std::string name;
  BackendKind kind = BackendKind::kCpu;
  int cores = 0;
  int compute_capability = 0;
  std::string driver;

  bool operator==(const DeviceIdentity&) const = default;
};
DeviceIdentity IdentityOf(const DeviceInfo& info);
// "NAME, 132 cores, driver 13000 runtime 13000".
std::string ToString(const DeviceIdentity& device);

struct TuningCache {
  struct Section {
    DeviceIdentity device;
    std::vector<std::pair<MatmulKey, std::vector<MeasuredRows>>> weights;
  };
  std::string build;
  std::vector<Section> devices;
};

std::string WriteTuningCache(const TuningCache& cache);
// kInvalidArgument names what is wrong: a file that WriteTuningCache cannot have made is refused as
// a whole.
absl::StatusOr<TuningCache> ParseTuningCache(std::string_view text);

// The file's text. kNotFound where there is none, kInvalidArgument where it is no file or larger
// than any that is written, kUnavailable where it cannot be read.
absl::StatusOr<std::string> ReadTuningFile(const std::string& path);
// Replaces the file as a whole, or leaves it as it was: kInvalidArgument where something else is
// there, kUnavailable where it cannot be written.
absl::Status ReplaceTuningFile(const std::string& path, std::string_view text);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_AUTOTUNE_CACHE_FILE_H_
