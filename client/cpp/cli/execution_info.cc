#include "client/cpp/cli/execution_info.h"

#include "client/cpp/cli/table.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nibble/client_tensor.h"

namespace nibble::cli {

Json InfoJson(const v1::ExecutionInfo& info, int64_t wall_us) {
  return {{"kernel", info.kernel()},
          {"device", info.device()},
          {"batch_rows", info.batch_rows()},
          {"batches", info.batches()},
          {"queue_us", info.queue_us()},
          {"compute_us", info.compute_us()},
          {"wall_us", wall_us},
          {"weight_version", info.weight_version()}};
}

std::vector<std::pair<std::string, std::string>> InfoPairs(const v1::ExecutionInfo& info,
                                                           int64_t wall_us) {
  if (info.kernel().empty()) {  // no rows: nothing ran
    return {{"wall", FormatMicros(static_cast<double>(wall_us))}};
  }
  std::string rows = fmt::format("{}", info.batch_rows());
  if (info.batches() > 1) rows += fmt::format(" (split over {} batches)", info.batches());
  return {{"kernel", info.kernel()},
          {"device", info.device()},
          {"batch rows", rows},
          {"queue", FormatMicros(static_cast<double>(info.queue_us()))},
          {"compute", FormatMicros(static_cast<double>(info.compute_us()))},
          {"wall", FormatMicros(static_cast<double>(wall_us))}};
}

std::string ShapeText(const v1::Tensor& tensor) {
  return fmt::format("{} [{}]", client::DTypeName(tensor.dtype()),
                     fmt::join(tensor.shape().begin(), tensor.shape().end(), ", "));
}

Json ShapeJson(const v1::Tensor& tensor) {
  Json shape = Json::array();
  for (const int64_t dim : tensor.shape()) shape.push_back(dim);
  return shape;
}

}  // namespace nibble::cli
