// How a request was executed, as the commands print it.
#ifndef NIBBLE_CLIENT_CLI_EXECUTION_INFO_H_
#define NIBBLE_CLIENT_CLI_EXECUTION_INFO_H_

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/cli/session.h"
#include "nibble/v1/linear.pb.h"

namespace nibble::cli {

// `wall_us` is the whole call as this client saw it.
Json InfoJson(const v1::ExecutionInfo& info, int64_t wall_us);
std::vector<std::pair<std::string, std::string>> InfoPairs(const v1::ExecutionInfo& info,
                                                           int64_t wall_us);

// "BF16 [4, 4096]".
std::string ShapeText(const v1::Tensor& tensor);
Json ShapeJson(const v1::Tensor& tensor);

// Microseconds since construction.
class Stopwatch {
 public:
  int64_t ElapsedMicros() const {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                                 begin_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace nibble::cli

#endif  // NIBBLE_CLIENT_CLI_EXECUTION_INFO_H_
