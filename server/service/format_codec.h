// Formats, weights and kernel choices on the wire.
#ifndef NIBBLE_SERVER_SERVICE_FORMAT_CODEC_H_
#define NIBBLE_SERVER_SERVICE_FORMAT_CODEC_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "nibble/format.h"
#include "nibble/measured.h"
#include "nibble/selector.h"
#include "nibble/v1/weights.pb.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/quantized.h"
#include "server/weight_store/weight_store.h"

namespace nibble::server {

// A spec of n x k with the parameters of `format`; checked as a whole. `field` names it in
// messages.
absl::StatusOr<WeightSpec> ParseFormat(const v1::FormatSpec& format, int64_t n, int64_t k,
                                       std::string_view field);
// What a checkpoint's unquantized layers become. kInvalidArgument: no format or a wrong one, more
// than 256 patterns, or one of more than 256 bytes.
absl::StatusOr<checkpoint::QuantizePlan> ParseQuantization(const v1::Quantization& quantize,
                                                           std::string_view field);
// How a checkpoint is to be opened. kInvalidArgument: an unknown value of `fuse`, too many
// patterns.
absl::StatusOr<checkpoint::OpenOptions> ParseOpenOptions(
    v1::Fuse fuse, const google::protobuf::RepeatedPtrField<std::string>& layers);
void ToWire(const WeightSpec& spec, v1::FormatSpec* format);
void ToWire(const WeightInfo& info, std::string_view device_id, v1::WeightSummary* summary);
// The choices for M = 1 .. max_m with their times; `measured` may be null.
void ToWire(const MatmulKey& key, const DeviceInfo& device, const MeasuredMatmul* measured,
            int64_t max_m, google::protobuf::RepeatedPtrField<v1::KernelChoice>* choices);
void ToWire(const MeasuredMatmul& measured,
            google::protobuf::RepeatedPtrField<v1::MeasuredRows>* rows);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_FORMAT_CODEC_H_
