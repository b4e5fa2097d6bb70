// Layers that read the same input, put together along N: q_proj, k_proj and v_proj to qkv_proj,
// gate_proj and up_proj to gate_up_proj. A fused layer decodes to exactly the rows of its parts.
#ifndef NIBBLE_SERVER_CHECKPOINT_FUSE_H_
#define NIBBLE_SERVER_CHECKPOINT_FUSE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/checkpoint/dialect.h"

namespace nibble::checkpoint {

// Replaces the plans of parts by those of the fused layers. kUnimplemented, where `fusing` requires
// it: parts that cannot be fused exactly; names them and the reason. Otherwise those stay apart,
// with a notice.
absl::Status FuseLayers(Fusing fusing, std::vector<LayerPlan>* plans, Notices* notices);

// The plan of `parts`, in that order, as one layer `name`. kUnimplemented: the reason why their
// formats do not allow it.
absl::StatusOr<LayerPlan> FusePlans(std::string_view name, const std::vector<LayerPlan>& parts);

// Fills `out` with the bytes of `part`.
void Fill(const PartPlan& part, std::span<std::byte> out);

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_FUSE_H_
