// The operations of the data plane, each checked against its weight when it is made.
#ifndef NIBBLE_SERVER_EXECUTOR_OPERATIONS_H_
#define NIBBLE_SERVER_EXECUTOR_OPERATIONS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "nibble/ops.h"
#include "server/batcher/batcher.h"
#include "server/executor/operation.h"
#include "server/weight_store/weight_store.h"

namespace nibble::server {

// An operation and the key under which its requests may share a batch.
struct KeyedOperation {
  std::shared_ptr<const Operation> operation;
  BatchKey key;
};

// Inputs: x [K]; for an F8_E4M3 x also F32 scales (1 per row for kPerToken, ceil(K/128) for
// kPerGroup). Outputs: y [N].
struct MatmulOptions {
  DType x = DType::kBF16;
  DType y = DType::kBF16;
  QuantMode x_scales = QuantMode::kNone;  // of an F8_E4M3 x: kPerToken or kPerGroup
  QuantMode activation =
      QuantMode::kNone;  // of a 16- or 32-bit x; kStatic takes the weight's input scale
};
KeyedOperation MakeMatmul(WeightHandle weight, const MatmulOptions& options);

// No inputs. Outputs: rows [K] of `dtype`, from `row_begin` of the weight on. Never shares a batch.
KeyedOperation MakeDequantize(WeightHandle weight, int64_t row_begin, DType dtype);

// Inputs: x [d]; with has_residual the residual [d]. Outputs: y [d]; scales where the mode has
// them; with has_residual the updated residual [d].
struct NormQuantOptions {
  int64_t d = 0;
  DType x = DType::kBF16;
  bool has_residual = false;
  float epsilon = 1e-6f;
  OutputQuant quant;
  DType y = DType::kF8E4M3;
};
KeyedOperation MakeNormQuant(WeightHandle gamma, const NormQuantOptions& options);
// With a gamma of the request's own, [d] elements of `gamma_dtype`: never shares a batch.
KeyedOperation MakeNormQuant(std::string gamma, DType gamma_dtype, const NormQuantOptions& options);

// Inputs: x [2d]. Outputs: y [d]; scales where the mode has them.
struct SiluMulQuantOptions {
  int64_t d = 0;
  DType x = DType::kBF16;
  OutputQuant quant;
  DType y = DType::kF8E4M3;
};
KeyedOperation MakeSiluMulQuant(const SiluMulQuantOptions& options);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_EXECUTOR_OPERATIONS_H_
