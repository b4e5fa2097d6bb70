#include "server/server.h"

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nibble/status.h"
#include "server/allocator/allocator.h"
#include "server/autotune/autotuner.h"
#include "server/autotune/build_id.h"
#include "server/checkpoint/quantized.h"
#include "server/clock/clock.h"
#include "server/config/checks.h"
#include "server/devices.h"
#include "server/executor/engine.h"
#include "server/health/health_service.h"
#include "server/listener.h"
#include "server/loader/loader.h"
#include "server/log/log.h"
#include "server/metrics/metrics.h"
#include "server/service/credentials.h"
#include "server/service/linear_service.h"
#include "server/service/weights_service.h"

namespace nibble::server {
namespace {

// Weights leave a 32nd of a device's memory to the rows of requests, so that a server full of
// weights still serves.
constexpr uint64_t kRequestShare = 32;

// While draining: the pause between calls after which the listeners close, and how long connections
// may then take to close.
constexpr std::chrono::milliseconds kQuietTime{200};
constexpr std::chrono::milliseconds kCloseTime{200};

std::string_view StateName(WeightState state) {
  switch (state) {
    case WeightState::kLoading:
      return "loading";
    case WeightState::kReady:
      return "ready";
    case WeightState::kDraining:
      return "draining";
    case WeightState::kFailed:
      return "failed";
  }
  return "unknown";
}

// What the library has to say, mostly of peers whose handshake failed, in the form of all other
// lines. It says errors alone unless GRPC_VERBOSITY is set.
void WriteGrpcLog(gpr_log_func_args* args) {
  const log::Level level =
      args->severity == GPR_LOG_SEVERITY_DEBUG ? log::Level::kDebug : log::Level::kWarn;
  log::Write(level, "grpc", {{"message", args->message}});
}

checkpoint::OpenOptions OpenOptionsOf(const ModelConfig& model) {
  checkpoint::OpenOptions options;
  if (model.fuse == "required") options.fusing = checkpoint::Fusing::kRequired;
  if (model.fuse == "where-possible") options.fusing = checkpoint::Fusing::kWherePossible;
  if (!model.layers.empty()) options.layers = {model.layers};
  return options;
}

// Keeps the gauges of resident weights and device memory in step with the store, and tells the
// autotuner.
class StoreMetrics : public WeightStoreObserver {
 public:
  StoreMetrics(Metrics& metrics, const std::vector<Device*>& devices) : devices_(devices) {
    for (const Device* device : devices) handles_.push_back(metrics.Device(device->info().id));
  }
  void OnResidentBytes(size_t device_index, Format format, int64_t bytes) override {
    handles_[device_index]->SetResidentBytes(FormatName(format), bytes);
    UpdateMemory(device_index);
  }
  void OnWeights(size_t device_index, WeightState state, int64_t count) override {
    handles_[device_index]->SetWeights(StateName(state), count);
    UpdateMemory(device_index);
    if (autotuner_ != nullptr) autotuner_->OnWeights(device_index, state, count);
  }
  void UpdateMemory(size_t device_index) {
    const MemoryUse use = devices_[device_index]->memory();
    handles_[device_index]->SetMemory("total", static_cast<int64_t>(use.total_bytes));
    handles_[device_index]->SetMemory("used", static_cast<int64_t>(use.used_bytes));
  }
  // Before anything is loaded. It outlives what is.
  void SetAutotuner(Autotuner* autotuner) { autotuner_ = autotuner; }

 private:
  Autotuner* autotuner_ = nullptr;
  const std::vector<Device*> devices_;
  std::vector<DeviceMetrics*> handles_;
};

class GrpcServer final : public Server {
 public:
  GrpcServer(const Config& config, std::function<void(const absl::Status&)> on_device_lost)
      : config_(config),
        on_device_lost_(std::move(on_device_lost)),
        health_({"nibble.v1.Linear", "nibble.v1.Weights"}) {}

  ~GrpcServer() override { Drain(); }

  absl::Status Open();
  absl::Status LoadModels() override;
  void Drain() override;

 private:
  absl::Status OpenEngine();
  void StartAutotuner();
  absl::Status OpenListeners();
  absl::StatusOr<std::unique_ptr<checkpoint::Checkpoint>> OpenModel(const ModelConfig& model) const;
  absl::Status WritePortFile(int metrics_port) const;
  void ShutDownListeners();

  const Config config_;
  const std::function<void(const absl::Status&)> on_device_lost_;

  // In the order of dependence: what is below uses what is above.
  HealthService health_;  // told by the engine of a lost device
  std::unique_ptr<Clock> clock_ = CreateRealClock();
  std::unique_ptr<Metrics> metrics_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<Autotuner> autotuner_;  // null: off. Stopped before what is below goes
  std::unique_ptr<StoreMetrics> store_metrics_;
  std::unique_ptr<WeightStore> store_;
  std::vector<std::shared_ptr<TunedChoices>> tuned_;  // empty: --autotune is off
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<BufferPool> results_;
  std::unique_ptr<StallWatch> stalls_;
  std::unique_ptr<SharedRegions> shared_memory_;  // null: not allowed
  std::unique_ptr<ServiceContext> context_;
  std::unique_ptr<LinearService> linear_;
  std::unique_ptr<WeightsService> weights_;
  grpc::ResourceQuota quota_{"nibble"};
  Listener data_;
  Listener control_;

  std::atomic<bool> draining_{false};
  std::once_flag drained_;
};

absl::Status GrpcServer::Open() {
  gpr_set_log_function(&WriteGrpcLog);
  NIBBLE_RETURN_IF_ERROR(OpenEngine());
  BufferPool::Options pool;
  pool.on_idle = &ReleaseFreeMemory;
  results_ = std::make_unique<BufferPool>(std::move(pool), *clock_);
  stalls_ =
      std::make_unique<StallWatch>(*clock_, std::chrono::milliseconds(config_.stall_timeout_ms));
  if (config_.allow_shared_memory) {
    shared_memory_ = std::make_unique<SharedRegions>(config_.max_shared_memory_bytes);
  }
  AuthTokens tokens;
  if (!config_.data_token_file.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(tokens.data, TokenSet::FromFile(config_.data_token_file));
  }
  if (!config_.control_token_file.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(tokens.control, TokenSet::FromFile(config_.control_token_file));
  }
  context_ =
      std::unique_ptr<ServiceContext>(new ServiceContext{*store_,
                                                         *engine_,
                                                         *clock_,
                                                         *metrics_,
                                                         std::move(tokens),
                                                         *results_,
                                                         *stalls_,
                                                         shared_memory_.get(),
                                                         config_.enable_echo,
                                                         config_.max_message_bytes,
                                                         {2 * config_.max_queue_bytes},
                                                         {config_.max_concurrent_upload_bytes}});
  linear_ = std::make_unique<LinearService>(*context_);
  weights_ = std::make_unique<WeightsService>(
      *context_, WeightsOptions{config_.weights_root, config_.max_upload_bytes});
  NIBBLE_RETURN_IF_ERROR(OpenListeners());
  int metrics_port = 0;
  if (!config_.metrics_listen.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(metrics_port, metrics_->Serve(config_.metrics_listen));
  }
  NIBBLE_RETURN_IF_ERROR(WritePortFile(metrics_port));
  log::Info("listening", {{"data", fmt::format("{}", fmt::join(config_.listen, ","))},
                          {"data_port", data_.port},
                          {"control", config_.control_listen},
                          {"control_port", control_.port},
                          {"metrics_port", metrics_port}});
  return absl::OkStatus();
}

absl::Status GrpcServer::OpenEngine() {
  NIBBLE_ASSIGN_OR_RETURN(devices_, OpenDevices(config_));
  std::vector<Device*> devices;
  for (const auto& device : devices_) devices.push_back(device.get());
  metrics_ = Metrics::Create(NIBBLE_VERSION,
                             devices.front()->info().kind == BackendKind::kCuda ? "cuda" : "cpu");
  for (const Device* device : devices) {
    const DeviceInfo& info = device->info();
    metrics_->Device(info.id)->SetPeakBandwidth(info.peak_bandwidth_bytes_per_second);
    log::Info("device", {{"id", info.id},
                         {"name", info.name},
                         {"cores", info.cores},
                         {"memory_bytes", info.memory_bytes},
                         {"peak_bandwidth_gb_per_s", info.peak_bandwidth_bytes_per_second / 1e9},
                         {"peak_tensor_tflops", info.peak_tensor_flops_per_second / 1e12}});
  }
  store_metrics_ = std::make_unique<StoreMetrics>(*metrics_, devices);
  for (size_t i = 0; i < devices.size(); ++i) store_metrics_->UpdateMemory(i);
  store_ = std::make_unique<WeightStore>(devices, store_metrics_.get(), kRequestShare);

  EngineOptions options;
  options.batcher.max_batch_rows = config_.max_batch_rows;
  options.batcher.max_queue_rows = config_.max_queue_rows;
  options.batcher.max_queue_bytes = config_.max_queue_bytes;
  options.batcher.max_queue_delay = std::chrono::microseconds(config_.max_queue_delay_us);
  options.batcher.contended_batch = std::chrono::microseconds(config_.contended_batch_us);
  options.batcher.batches_in_flight = config_.batches_in_flight;
  options.on_device_lost = [this](const absl::Status& status) {
    log::Error("device_lost", {{"error", MessageOf(status)}});
    health_.StopServing();
    on_device_lost_(status);
  };
  if (config_.autotune) tuned_ = MakeTunedChoices(devices);
  for (const auto& tuned : tuned_) options.tuned.push_back(tuned.get());
  NIBBLE_ASSIGN_OR_RETURN(engine_, Engine::Create(options, devices, *clock_, *metrics_));
  if (config_.autotune) StartAutotuner();
  return absl::OkStatus();
}

void GrpcServer::StartAutotuner() {
  AutotuneOptions options;
  options.limits.max_rows = config_.max_batch_rows;
  options.limits.budget = std::chrono::milliseconds(config_.autotune_budget_ms);
  options.limits.memory_bytes = config_.autotune_memory_bytes;
  options.cache_file = config_.autotune_cache;
  options.build = BuildId(NIBBLE_VERSION);
  autotuner_ = Autotuner::Start(
      options, *store_, tuned_, [this](size_t device) { return engine_->activity(device); },
      *clock_);
  store_metrics_->SetAutotuner(autotuner_.get());
}

absl::Status GrpcServer::OpenListeners() {
  NIBBLE_ASSIGN_OR_RETURN(
      const std::shared_ptr<grpc::ServerCredentials> credentials,
      MakeServerCredentials({config_.tls_cert, config_.tls_key, config_.tls_client_ca}));
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  quota_.Resize(config_.max_transport_bytes);
  const ListenerOptions options{config_.max_message_bytes, config_.max_streams_per_connection,
                                config_.handshake_timeout_ms, &quota_};
  NIBBLE_ASSIGN_OR_RETURN(
      data_, Listen("--listen", config_.listen, credentials, {linear_.get(), &health_}, options));
  NIBBLE_ASSIGN_OR_RETURN(control_, Listen("--control-listen", {config_.control_listen},
                                           credentials, {weights_.get(), &health_}, options));
  return absl::OkStatus();
}

absl::Status GrpcServer::WritePortFile(int metrics_port) const {
  if (config_.port_file.empty()) return absl::OkStatus();
  // Renamed into place, so that a reader sees all of it or nothing.
  const std::string temporary = config_.port_file + ".part";
  std::ofstream file(temporary);
  file << fmt::format("data={}\ncontrol={}\nmetrics={}\n", data_.port, control_.port, metrics_port);
  file.close();
  if (!file || std::rename(temporary.c_str(), config_.port_file.c_str()) != 0) {
    return absl::InvalidArgumentError(
        fmt::format("--port-file: cannot write '{}'", config_.port_file));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<checkpoint::Checkpoint>> GrpcServer::OpenModel(
    const ModelConfig& model) const {
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<checkpoint::Checkpoint> opened,
                          checkpoint::Checkpoint::Open(model.directory, OpenOptionsOf(model)));
  for (const std::string& element : config_.quantize) {
    const ModelFormat quantize = SplitQuantize(element);
    if (quantize.model != model.name) continue;
    NIBBLE_ASSIGN_OR_RETURN(QuantizeTarget target, ParseQuantizeTarget(quantize.format));
    return checkpoint::QuantizeOnLoad(std::move(opened), {std::move(target), {}});
  }
  return opened;
}

absl::Status GrpcServer::LoadModels() {
  for (const ModelConfig& model : config_.model) {
    const Clock::TimePoint begin = clock_->Now();
    NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<checkpoint::Checkpoint> opened, OpenModel(model));
    NIBBLE_ASSIGN_OR_RETURN(const Loaded loaded, LoadCheckpoint(
                                                     *store_, *opened, {model.name, ""},
                                                     [](const LoadProgress&) {}, draining_));
    for (const std::string& notice : loaded.notices) {
      log::Warn("load_notice", {{"model", model.name}, {"notice", notice}});
    }
    log::Info("model_ready", {{"model", model.name},
                              {"weights", loaded.weights.size()},
                              {"bytes", loaded.bytes},
                              {"ms", MicrosecondsBetween(begin, clock_->Now()) / 1000}});
  }
  if (draining_) return absl::CancelledError("the server is draining");
  health_.StartServing();
  log::Info("serving");
  return absl::OkStatus();
}

void GrpcServer::ShutDownListeners() {
  // Connections that are idle and slow to close are not waited for.
  const auto deadline = std::chrono::system_clock::now() + kCloseTime;
  std::thread control([&] {
    if (control_.server != nullptr) control_.server->Shutdown(deadline);
  });
  if (data_.server != nullptr) data_.server->Shutdown(deadline);
  control.join();
}

void GrpcServer::Drain() {
  std::call_once(drained_, [this] {
    draining_ = true;
    health_.StopServing();
    if (autotuner_ != nullptr) autotuner_->Stop();
    if (data_.server != nullptr && control_.server != nullptr) {
      log::Info("drain_begin",
                {{"grace_ms", config_.drain_grace_ms}, {"timeout_ms", config_.drain_timeout_ms}});
      std::this_thread::sleep_for(std::chrono::milliseconds(config_.drain_grace_ms));
    }
    if (context_ != nullptr) {
      context_->draining = true;
      context_->calls.Close();
    }
    if (weights_ != nullptr) weights_->StopLoads();
    health_.EndWatches();
    if (linear_ != nullptr) linear_->DrainStreams();
    if (engine_ != nullptr) engine_->StopAccepting();
    bool finished = true;
    if (context_ != nullptr) {
      finished = context_->calls.WaitQuiet(
          kQuietTime,
          clock_->Now() + std::chrono::milliseconds(config_.drain_timeout_ms) + kQuietTime);
    }
    if (!finished) {
      engine_->FailQueued(absl::UnavailableError("the drain timeout has passed"));
    }
    // Cancels what is left.
    ShutDownListeners();
    log::Info("drain_done", {{"all_finished", finished}});
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const Config& config, std::function<void(const absl::Status&)> on_device_lost) {
  auto server = std::make_unique<GrpcServer>(config, std::move(on_device_lost));
  NIBBLE_RETURN_IF_ERROR(server->Open());
  return server;
}

}  // namespace nibble::server
