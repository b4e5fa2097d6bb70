#include "server/loader/loader.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "fmt/format.h"
#include "nibble/status.h"
#include "server/loader/layer_queue.h"

namespace nibble::server {
namespace {

// Beside two of the largest layers, where those need nothing but their bytes.
constexpr int64_t kBesideLargestBytes = int64_t{64} << 20;
constexpr int kMaxThreads = 8;

int ThreadCount(size_t layers) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return static_cast<int>(
      std::clamp<int64_t>(std::min<int64_t>(cores, static_cast<int64_t>(layers)), 1, kMaxThreads));
}

absl::Status AddLayers(const checkpoint::Checkpoint& checkpoint,
                       const std::vector<PlannedWeight>& planned,
                       const std::function<void(const LoadProgress&)>& report,
                       const std::atomic<bool>& cancelled, LoadProgress progress,
                       WeightStore::Transaction& transaction) try {
  const std::vector<checkpoint::Layer>& layers = checkpoint.layers();
  // Within twice the largest tensor and 256 MiB, also where a layer takes twice its bytes.
  int64_t largest = 0;
  for (const checkpoint::Layer& layer : layers) {
    largest = std::max({largest, layer.host_bytes, 2 * layer.bytes});
  }
  LayerQueue queue(ThreadCount(layers.size()), largest + kBesideLargestBytes, [&](size_t i) {
    NIBBLE_ASSIGN_OR_RETURN(const CanonicalWeight weight, checkpoint.LoadForUpload(i));
    NIBBLE_RETURN_IF_ERROR(transaction.Add(planned[i].name, weight));
    checkpoint.Release(i);
    return absl::OkStatus();
  });
  const auto take = [&](const LayerQueue::State& state) {
    progress.bytes_done = state.bytes_done;
    progress.layers_done = state.layers_done;
    if (!state.status.ok()) return state.status;
    if (!cancelled.load(std::memory_order_relaxed)) return absl::OkStatus();
    return absl::CancelledError("the caller cancelled the load");
  };
  for (size_t i = 0; i < layers.size(); ++i) {
    NIBBLE_RETURN_IF_ERROR(take(queue.state()));
    progress.layer = layers[i].name;
    report(progress);
    NIBBLE_RETURN_IF_ERROR(take(queue.Push(i, layers[i].bytes, layers[i].host_bytes)));
  }
  while (progress.layers_done < progress.layers_total) {
    NIBBLE_RETURN_IF_ERROR(take(queue.WaitForProgress()));
    if (progress.layers_done == progress.layers_total) break;
    report(progress);
  }
  NIBBLE_RETURN_IF_ERROR(checkpoint.CheckIntact());
  NIBBLE_RETURN_IF_ERROR(transaction.Commit());
  progress.layer.clear();
  report(progress);
  return absl::OkStatus();
} catch (const std::system_error& error) {
  return absl::ResourceExhaustedError(
      fmt::format("the system refused a thread to load with: {}", error.what()));
}

}  // namespace

absl::StatusOr<Loaded> LoadCheckpoint(WeightStore& store, const checkpoint::Checkpoint& checkpoint,
                                      const LoadTarget& target,
                                      const std::function<void(const LoadProgress&)>& progress,
                                      const std::atomic<bool>& cancelled) {
  if (checkpoint.layers().empty()) {
    return absl::InvalidArgumentError(fmt::format(
        "model '{}': expected a checkpoint with a linear layer; found none", target.model));
  }
  LoadProgress start;
  start.layers_total = static_cast<int>(checkpoint.layers().size());
  Loaded loaded;
  std::vector<PlannedWeight> planned;
  for (const checkpoint::Layer& layer : checkpoint.layers()) {
    planned.push_back({fmt::format("{}/{}", target.model, layer.name), layer.spec});
    loaded.weights.push_back(planned.back().name);
    start.bytes_total += layer.bytes;
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<WeightStore::Transaction> transaction,
                          store.Begin(target.model, planned, target.device));
  const int64_t bytes = start.bytes_total;
  if (absl::Status added =
          AddLayers(checkpoint, planned, progress, cancelled, std::move(start), *transaction);
      !added.ok()) {
    transaction->Fail(added);
    return added;
  }
  loaded.notices = checkpoint.notices();
  loaded.bytes = bytes;
  return loaded;
}

absl::StatusOr<Loaded> LoadMatrix(WeightStore& store, const ConstMatrixView& matrix,
                                  const QuantizeTarget& format, const LoadTarget& target) {
  NIBBLE_ASSIGN_OR_RETURN(const CanonicalWeight weight,
                          Quantize(matrix, format.spec, format.options));
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<WeightStore::Transaction> transaction,
                          store.Begin(target.model, {{target.model, weight.spec}}, target.device));
  absl::Status added = transaction->Add(target.model, weight);
  if (added.ok()) added = transaction->Commit();
  if (!added.ok()) {
    transaction->Fail(added);
    return added;
  }
  NIBBLE_ASSIGN_OR_RETURN(const WeightGeometry geometry, GeometryOf(weight.spec));
  return Loaded{{target.model}, {}, geometry.total_bytes};
}

absl::StatusOr<std::string> ResolveBelowRoot(const std::string& root, const std::string& path) {
  namespace fs = std::filesystem;
  if (root.empty()) {
    return absl::FailedPreconditionError(
        "path: the server was started without --weights-root, so nothing can be loaded by path");
  }
  // The system would take such a path for the part before the byte, which is not what was checked.
  if (path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("path: expected no byte 0x00");
  }
  std::error_code error;
  const fs::path canonical_root = fs::canonical(root, error);
  if (error) {
    return absl::FailedPreconditionError(
        fmt::format("--weights-root '{}': {}", root, error.message()));
  }
  const fs::path resolved = fs::weakly_canonical(canonical_root / path, error);
  const auto mismatch =
      std::mismatch(canonical_root.begin(), canonical_root.end(), resolved.begin(), resolved.end());
  if (error || mismatch.first != canonical_root.end()) {
    return absl::PermissionDeniedError(
        fmt::format("path: expected a directory below --weights-root; received '{}'", path));
  }
  if (!fs::is_directory(resolved, error)) {
    return absl::NotFoundError(
        fmt::format("path: there is no directory '{}' below --weights-root", path));
  }
  return resolved.string();
}

}  // namespace nibble::server
