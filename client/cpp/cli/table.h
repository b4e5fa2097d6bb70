// Text for people: aligned tables, sizes, and the names of the wire's enumerations.
#ifndef NIBBLE_CLIENT_CLI_TABLE_H_
#define NIBBLE_CLIENT_CLI_TABLE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/v1/weights.pb.h"

namespace nibble::cli {

// Columns two spaces apart, each as wide as its widest cell. Cells of a column marked '>' stand
// right,
// '<' left.
class Table {
 public:
  // "<NAME", ">BYTES": the mark and the title. An empty title in every column leaves the head out.
  explicit Table(std::vector<std::string> columns);
  // As many cells as there are columns.
  void AddRow(std::vector<std::string> cells);
  std::string ToString() const;

 private:
  std::vector<char> align_;
  std::vector<std::string> titles_;
  std::vector<std::vector<std::string>> rows_;
};

// "name  value" lines.
std::string FormatPairs(const std::vector<std::pair<std::string, std::string>>& pairs);

// "1 layer", "2 layers".
std::string Plural(int64_t count, std::string_view noun);
// "0 B", "1023 B", "1.5 KiB", "256.0 MiB".
std::string FormatBytes(int64_t bytes);
// "850 us", "12.3 ms", "4.56 s".
std::string FormatMicros(double micros);

// Lower-case names as flags take them: "bf16", "per-token", "nf4", "channel".
std::string_view FlagName(v1::DType dtype);
std::string_view FlagName(v1::QuantMode mode);
std::string_view FlagName(v1::WeightFormat format);
std::string_view FlagName(v1::ScaleLayout layout);
std::string_view FlagName(v1::WeightState state);

// The other way round, for the flags that take them.
const std::map<std::string, v1::DType>& DTypeFlags();
const std::map<std::string, v1::QuantMode>& QuantModeFlags();
const std::map<std::string, v1::WeightFormat>& WeightFormatFlags();
const std::map<std::string, v1::ScaleLayout>& ScaleLayoutFlags();

// "nf4 block 64 nested", "int4 group 128 zero-points", "fp8 channel".
std::string FormatText(const v1::FormatSpec& format);

}  // namespace nibble::cli

#endif  // NIBBLE_CLIENT_CLI_TABLE_H_
