// One lane of an executor: a stream and the memory that its batches pass through.
#ifndef NIBBLE_SERVER_EXECUTOR_LANE_H_
#define NIBBLE_SERVER_EXECUTOR_LANE_H_

#include <map>
#include <memory>
#include <span>
#include <tuple>

#include "absl/status/statusor.h"
#include "nibble/backend.h"
#include "server/batcher/batcher.h"
#include "server/executor/copy_crew.h"
#include "server/executor/graph_cache.h"
#include "server/executor/operation.h"
#include "server/executor/tuned_choices.h"
#include "server/metrics/metrics.h"

namespace nibble::server {

// Used by one thread.
class Lane {
 public:
  // Choices are the built-in ones where `tuned` is null. `crew` outlives the lane.
  static absl::StatusOr<std::unique_ptr<Lane>> Create(Device& device, Metrics* metrics,
                                                      TunedChoices* tuned, CopyCrew& crew);

  // Gathers the rows, runs the kernel, scatters the results. On return nothing touches the batch's
  // memory.
  BatchResult Run(const Batch& batch);

  // Some rows of one array of a request, and where they lie in staging memory.
  struct Slice {
    const Job* job;
    size_t array;
    int64_t row_begin;  // of the request
    int64_t rows;
    uint64_t offset;
    uint64_t bytes;
  };

 private:
  Lane(Device& device, std::unique_ptr<Stream> stream, Metrics* metrics, TunedChoices* tuned,
       CopyCrew& crew);

  // Where the arrays of a batch lie in staging memory: [inputs..., constant] and [outputs...].
  struct Layout {
    std::vector<uint64_t> input_offsets;
    std::vector<uint64_t> output_offsets;
    uint64_t constant_offset = 0;
    uint64_t input_bytes = 0;
    uint64_t output_bytes = 0;
  };
  static Layout LayoutOf(const Operation& operation, int64_t rows);

  // One batch's work on the stream: copy in, launch, copy out.
  struct Work {
    const Operation& operation;
    const Choice& choice;
    LaunchArgs args;
    bool copy_in = false;
    bool copy_out = false;
    uint64_t input_bytes = 0;
    uint64_t output_bytes = 0;
  };

  absl::Status Execute(const Batch& batch, const Operation& operation, const Problem& problem,
                       const Choice& choice, double* compute_us);
  // copy(slice) for each, by several threads if there is much; `progress` as in
  // CopyCrew::Run.
  template <class Copy, class Progress>
  void ForEach(std::span<const Slice> slices, const Copy& copy, const Progress& progress);
  // Rows of the requests to staging memory and, `streamed`, all of it on to the device. After an
  // error what was enqueued still reads the buffers; the rest is gathered all the same.
  absl::Status GatherInputs(const Batch& batch, const Operation& operation, const Layout& layout,
                            bool streamed);
  void ScatterOutputs(const Batch& batch, const Operation& operation, const Layout& layout);
  // Replays the work where it has been recorded, else enqueues it.
  absl::Status Start(const Batch& batch, const Work& work);
  absl::Status Enqueue(const Work& work);
  // Null where the work cannot be recorded.
  std::unique_ptr<Graph> Record(const Work& work);
  absl::Status Grow(std::unique_ptr<Buffer>& buffer, uint64_t bytes, MemoryKind kind);
  void Report(const Problem& problem, const Choice& choice, double compute_us);

  Device& device_;
  std::unique_ptr<Stream> stream_;
  Metrics* metrics_;
  TunedChoices* tuned_;
  CopyCrew& crew_;
  DeviceMetrics* device_metrics_ = nullptr;
  // Handles by (op, format, kernel); the kernel's name is a literal, so its address identifies it.
  std::map<std::tuple<Op, Format, const char*>, KernelMetrics*> kernel_metrics_;

  std::unique_ptr<Buffer> staging_in_;
  std::unique_ptr<Buffer> staging_out_;
  std::unique_ptr<Buffer> device_in_;
  std::unique_ptr<Buffer> device_out_;
  std::unique_ptr<Buffer> workspace_;

  // Goes before the buffers that its graphs name.
  GraphCache graphs_;
  bool records_ = true;  // false once the device has said that it has no graphs
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_EXECUTOR_LANE_H_
