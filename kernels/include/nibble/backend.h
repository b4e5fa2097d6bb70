// A backend: the devices of one kind. Everything that runs on a device goes through Device and
// Stream; the CPU and CUDA backends pass one conformance suite.
//
// Threads: Device is thread safe. A Stream, its events and the buffers passed to it belong to one
// thread at a time. Work on one stream runs in the order it was enqueued; a call may return before
// it is done.
#ifndef NIBBLE_BACKEND_H_
#define NIBBLE_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nibble/ops.h"
#include "nibble/selector.h"
#include "nibble/status.h"
#include "nibble/weight.h"

namespace nibble {

enum class MemoryKind : uint8_t {
  kDevice,   // the device's own memory
  kStaging,  // host memory that copies to and from the device at full speed (pinned); the device
             // can also read and write it directly
};

// Memory from Device::Allocate, aligned to 256 bytes; freed by the destructor.
class Buffer {
 public:
  virtual ~Buffer() = default;
  // The address as the device sees it; for kStaging also valid on the host.
  void* data() const { return data_; }
  uint64_t size() const { return size_; }

 protected:
  Buffer(void* data, uint64_t size) : data_(data), size_(size) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

 private:
  void* data_;
  uint64_t size_;
};

// Work recorded from a stream, which can be launched again as a whole. It belongs to the thread of
// its stream, and holds no buffer or weight alive.
class Graph {
 public:
  virtual ~Graph() = default;

 protected:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
};

class Stream {
 public:
  virtual ~Stream() = default;
  // Copies between staging and device memory. The source stays unchanged until the copy has run.
  virtual Status Copy(void* to, const void* from, uint64_t bytes) = 0;
  // Waits until everything enqueued so far is done, and returns the first error of it.
  virtual Status Synchronize() = 0;
  // Marks a point of the stream. Slots 0..3; a slot may be marked again after Synchronize.
  virtual Status Mark(int slot) = 0;
  // Device time between two marked points in microseconds, after Synchronize.
  virtual StatusOr<double> MicrosecondsBetween(int begin_slot, int end_slot) = 0;

  // Copies, marks and ops enqueued from now on are recorded instead of run, until EndCapture; the
  // same thread calls both, and nothing else of the stream in between. kUnimplemented where the
  // device has no graphs.
  virtual Status BeginCapture() = 0;
  // Ends the recording also when it fails.
  virtual StatusOr<std::unique_ptr<Graph>> EndCapture() = 0;
  // Enqueues what was recorded from this stream, with the addresses of then: buffers and weights
  // that it names must still be there. Marks in it are set anew.
  virtual Status Launch(Graph& graph) = 0;
};

struct MemoryUse {
  uint64_t total_bytes = 0;
  uint64_t used_bytes = 0;  // weights, buffers and reservations
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  // From now on info() says batch_invariant. Before the first op.
  virtual void SetBatchInvariant() = 0;
  virtual MemoryUse memory() const = 0;
  // OK, or the sticky error that makes the device unusable for the rest of the process.
  virtual Status health() const = 0;

  // kResourceExhausted when the device's memory does not suffice.
  virtual StatusOr<std::unique_ptr<Buffer>> Allocate(uint64_t bytes, MemoryKind kind) = 0;
  virtual StatusOr<std::unique_ptr<Stream>> CreateStream() = 0;

  // Memory that Upload of such a weight takes (an upper bound), scratch included. `spec` is valid.
  virtual uint64_t WeightBytes(const WeightSpec& spec) const = 0;
  // Takes `bytes` out of the free memory, so that a load that has started cannot run out. Given
  // back when the returned object is destroyed; Upload draws from the reservation passed to it.
  class Reservation {
   public:
    virtual ~Reservation() = default;
  };
  virtual StatusOr<std::unique_ptr<Reservation>> Reserve(uint64_t bytes) = 0;
  // Repacks and copies `weight` (checked by ValidateWeight first). Blocks until the bytes are
  // resident. `reservation` may be null.
  virtual StatusOr<std::unique_ptr<DeviceWeight>> Upload(const CanonicalWeight& weight,
                                                         Reservation* reservation) = 0;
  // A dense vector or matrix as the kernels read it, for kNormQuant's gamma. kInvalidArgument
  // unless the format is kDense.
  virtual StatusOr<ConstMatrixView> DenseView(const DeviceWeight& weight) const = 0;

  // Scratch memory (kDevice) that the op needs for `problem`; passed back as `workspace`.
  virtual uint64_t WorkspaceBytes(const Problem& problem, const Choice& choice) const = 0;

  // The ops validate their arguments, then enqueue. `workspace` holds at least WorkspaceBytes and
  // stays untouched by others until the op has run. `choice` comes from Select for the same
  // problem.
  virtual Status Matmul(const MatmulArgs& args, const Choice& choice, void* workspace,
                        Stream& stream) = 0;
  virtual Status Dequantize(const DequantizeArgs& args, const Choice& choice, void* workspace,
                            Stream& stream) = 0;
  virtual Status NormQuant(const NormQuantArgs& args, const Choice& choice, void* workspace,
                           Stream& stream) = 0;
  virtual Status SiluMulQuant(const SiluMulQuantArgs& args, const Choice& choice, void* workspace,
                              Stream& stream) = 0;
};

struct CpuOptions {
  int devices = 1;  // how many CPU devices to present: "cpu:0", "cpu:1", ...
  int threads = 0;  // worker threads of each device; 0: the machine's cores over `devices`
  uint64_t memory_bytes =
      0;  // memory budget of each device; 0: 80 % of physical memory over `devices`
  bool measure_bandwidth = true;  // false: peak_bandwidth_bytes_per_second is 0 (tests)
};

StatusOr<std::vector<std::unique_ptr<Device>>> CreateCpuDevices(const CpuOptions& options);

}  // namespace nibble

#endif  // NIBBLE_BACKEND_H_
