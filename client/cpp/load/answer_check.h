// Compares answers with products computed here, over the weight as the server decodes it.
#ifndef NIBBLE_CLIENT_LOAD_ANSWER_CHECK_H_
#define NIBBLE_CLIENT_LOAD_ANSWER_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/load/workload.h"
#include "nibble/client.h"

namespace nibble::load {

// Thread safe once made.
class AnswerCheck {
 public:
  // Decodes every layer once (F32) and multiplies it in float64 with the workload's distinct rows,
  // quantized first where activation_quant says so. The bias is what the server answers to zeros,
  // where the control plane says that there is one, or does not answer.
  static absl::StatusOr<AnswerCheck> Create(const Workload& workload, client::Client& client);

  // What is wrong with y; empty: every element is in tolerance. NaN must meet NaN.
  std::string Compare(const Draw& draw, const std::string& y) const;

 private:
  struct LayerAnswers {
    std::vector<double> expected;   // [kDistinctRows, N]
    std::vector<double> tolerance;  // the same
  };

  explicit AnswerCheck(const Workload& workload) : workload_(&workload) {}
  static absl::StatusOr<LayerAnswers> AnswersOf(const Workload& workload, size_t layer,
                                                client::Client& client);

  const Workload* workload_;
  std::vector<LayerAnswers> layers_;
};

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_ANSWER_CHECK_H_
