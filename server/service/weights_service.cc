#include "server/service/weights_service.h"

#include <memory>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "nibble/measured.h"
#include "nibble/status.h"
#include "server/log/log.h"
#include "server/service/format_codec.h"
#include "server/service/load_call.h"
#include "server/service/tensor_codec.h"
#include "server/service/upload_call.h"
#include "server/status/status.h"

namespace nibble::server {
namespace {

constexpr int64_t kDefaultExplainM = 4096;
constexpr int64_t kMaxExplainM = 65536;

// A unary call that is answered by `handle` on the spot.
template <typename Handle>
grpc::ServerUnaryReactor* Answer(ServiceContext& service, RpcMetrics* rpc,
                                 grpc::CallbackServerContext* context, const Handle& handle) {
  RequestMeter meter(service, rpc);
  absl::Status status = Admit(service, *context, Plane::kControl);
  if (status.ok()) status = handle();
  meter.Finished(status);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

// The index of the device `id`, or of the first.
absl::StatusOr<size_t> FindDevice(const WeightStore& store, const std::string& id) {
  std::string known;
  for (size_t i = 0; i < store.devices().size(); ++i) {
    const DeviceInfo& info = store.devices()[i]->info();
    if (id.empty() || info.id == id) return i;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", info.id);
  }
  return absl::InvalidArgumentError(
      fmt::format("device: expected one of {}; received '{}'", known, id));
}

std::string DescribeDevice(const DeviceInfo& info) {
  std::string text = fmt::format(
      "{}: {}, {} cores, {:.1f} GB memory, {:.1f} GB/s read", info.id, info.name, info.cores,
      static_cast<double>(info.memory_bytes) / 1e9, info.peak_bandwidth_bytes_per_second / 1e9);
  const double tflops = info.peak_tensor_flops_per_second / 1e12;
  if (tflops > 0.0) text += fmt::format(", {:.0f} TFLOP/s BF16", tflops);
  return text;
}

// What was measured of the key on the device; none where choices are the built-in ones.
std::optional<MeasuredMatmul> MeasuredOf(const Engine& engine, size_t device_index,
                                         const MatmulKey& key) {
  const TunedChoices* tuned = engine.tuned(device_index);
  return tuned != nullptr ? tuned->Find(key) : std::nullopt;
}

absl::Status ExplainInto(const WeightStore& store, const Engine& engine,
                         const v1::ExplainRequest& request, v1::ExplainResponse* response) {
  WeightSpec spec;
  std::string device_id = request.device();
  switch (request.subject_case()) {
    case v1::ExplainRequest::kWeight: {
      NIBBLE_ASSIGN_OR_RETURN(const WeightInfo info, store.Describe(request.weight()));
      spec = info.spec;
      if (device_id.empty()) device_id = store.devices()[info.device_index]->info().id;
      break;
    }
    case v1::ExplainRequest::kHypothetical: {
      const v1::HypotheticalWeight& weight = request.hypothetical();
      NIBBLE_ASSIGN_OR_RETURN(
          spec, ParseFormat(weight.format(), weight.n(), weight.k(), "hypothetical.format"));
      break;
    }
    default:
      return absl::InvalidArgumentError(
          "subject: expected weight or hypothetical; received neither");
  }
  NIBBLE_ASSIGN_OR_RETURN(const size_t device_index, FindDevice(store, device_id));
  const DeviceInfo& device = store.devices()[device_index]->info();
  const int64_t max_m = request.max_m() == 0 ? kDefaultExplainM : request.max_m();
  if (max_m < 1 || max_m > kMaxExplainM) {
    return absl::InvalidArgumentError(
        fmt::format("max_m: expected 1 to {}; received {}", kMaxExplainM, max_m));
  }
  NIBBLE_ASSIGN_OR_RETURN(
      const DType input,
      ParseDType(request.input_dtype(), DType::kBF16,
                 {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3}, "input_dtype"));
  NIBBLE_ASSIGN_OR_RETURN(const QuantMode activation,
                          ParseQuantMode(request.activation_quant(), "activation_quant"));
  const DType output = input == DType::kF8E4M3 ? DType::kBF16 : input;
  response->set_device(device.id);
  response->set_device_description(DescribeDevice(device));
  const MatmulKey key{spec, input, output, activation};
  const std::optional<MeasuredMatmul> measured = MeasuredOf(engine, device_index, key);
  ToWire(key, device, measured ? &*measured : nullptr, max_m, response->mutable_kernels());
  if (measured) ToWire(*measured, response->mutable_measured());
  return absl::OkStatus();
}

absl::Status DescribeInto(const WeightStore& store, const Engine& engine, const std::string& name,
                          v1::DescribeResponse* response) {
  NIBBLE_ASSIGN_OR_RETURN(const WeightInfo info, store.Describe(name));
  const DeviceInfo& device = store.devices()[info.device_index]->info();
  ToWire(info, device.id, response->mutable_summary());
  response->set_dtype(ToWire(info.spec.dtype));
  response->set_has_bias(info.spec.has_bias);
  if (info.spec.has_input_scale) response->set_input_scale(info.input_scale);
  response->mutable_counters()->set_requests(info.requests);
  response->mutable_counters()->set_rows(info.rows);
  response->mutable_counters()->set_batches(info.batches);
  response->mutable_counters()->set_compute_us(info.compute_us);
  const MatmulKey key{info.spec};
  const std::optional<MeasuredMatmul> measured = MeasuredOf(engine, info.device_index, key);
  ToWire(key, device, measured ? &*measured : nullptr, kDefaultExplainM,
         response->mutable_kernels());
  response->set_handles(info.handles);
  return absl::OkStatus();
}

// Answered when the memory is free, which may be long after the handler has returned.
class UnloadCall final : public grpc::ServerUnaryReactor {
 public:
  UnloadCall(ServiceContext& service, RpcMetrics* rpc)
      : live_(service.calls), meter_(service, rpc) {}
  void OnDone() override { delete this; }
  void End(const absl::Status& status) {
    meter_.Finished(status);
    Finish(ToGrpcStatus(status));
  }

 private:
  const CallTracker::Live live_;
  RequestMeter meter_;
};

}  // namespace

WeightsService::WeightsService(ServiceContext& service, WeightsOptions options)
    : service_(service),
      options_(std::move(options)),
      load_metrics_(service.metrics.Rpc("Load")),
      upload_metrics_(service.metrics.Rpc("Upload")),
      unload_metrics_(service.metrics.Rpc("Unload")),
      list_metrics_(service.metrics.Rpc("List")),
      describe_metrics_(service.metrics.Rpc("Describe")),
      explain_metrics_(service.metrics.Rpc("Explain")),
      workers_(options_.worker_threads) {}

grpc::ServerWriteReactor<v1::LoadProgress>* WeightsService::Load(
    grpc::CallbackServerContext* context, const v1::LoadRequest* request) {
  auto* call = new LoadCall(service_, load_metrics_, stopping_, *context);
  if (absl::Status admitted = Admit(service_, *context, Plane::kControl); !admitted.ok()) {
    call->Refuse(admitted);
  } else {
    workers_.Post([this, call, copy = *request] { call->Run(options_.weights_root, copy); });
  }
  return call;
}

grpc::ServerReadReactor<v1::UploadRequest>* WeightsService::Upload(
    grpc::CallbackServerContext* context, v1::UploadResponse* response) {
  return new UploadCall(service_, upload_metrics_, options_.max_upload_bytes, workers_, uploads_,
                        *context, response);
}

grpc::ServerUnaryReactor* WeightsService::Unload(grpc::CallbackServerContext* context,
                                                 const v1::UnloadRequest* request,
                                                 v1::UnloadResponse* response) {
  auto* call = new UnloadCall(service_, unload_metrics_);
  absl::Status status = Admit(service_, *context, Plane::kControl);
  if (status.ok()) {
    status = service_.store.Unload(request->name(),
                                   [call, response](const WeightStore::Unloaded& unloaded) {
                                     response->set_weights(unloaded.weights);
                                     response->set_freed_bytes(unloaded.freed_bytes);
                                     call->End(absl::OkStatus());
                                   });
    if (status.ok()) log::Info("unload", {{"name", request->name()}});
  }
  if (!status.ok()) call->End(status);
  return call;
}

grpc::ServerUnaryReactor* WeightsService::List(grpc::CallbackServerContext* context,
                                               const v1::ListRequest* request,
                                               v1::ListResponse* response) {
  return Answer(service_, list_metrics_, context, [&] {
    for (const WeightInfo& info : service_.store.List(request->prefix())) {
      ToWire(info, service_.store.devices()[info.device_index]->info().id, response->add_weights());
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* WeightsService::Describe(grpc::CallbackServerContext* context,
                                                   const v1::DescribeRequest* request,
                                                   v1::DescribeResponse* response) {
  return Answer(service_, describe_metrics_, context, [&] {
    return DescribeInto(service_.store, service_.engine, request->name(), response);
  });
}

grpc::ServerUnaryReactor* WeightsService::Explain(grpc::CallbackServerContext* context,
                                                  const v1::ExplainRequest* request,
                                                  v1::ExplainResponse* response) {
  return Answer(service_, explain_metrics_, context,
                [&] { return ExplainInto(service_.store, service_.engine, *request, response); });
}

}  // namespace nibble::server
