#include "client/cpp/load/shared_region.h"

#include <cstring>
#include <utility>

#include "fmt/format.h"

namespace nibble::load {
namespace {

// Of each tensor's beginning.
constexpr int64_t kAlignment = 64;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

class AttachedRegion final : public SharedRegion {
 public:
  absl::Status Map(client::Client& client, const Workload& workload, int64_t exchanges) {
    int64_t bytes = 0;
    for (const auto& [k, activations] : workload.all_activations()) {
      tensors_.input_offset[k] = bytes;
      bytes += Aligned(static_cast<int64_t>(activations.bytes.size()));
    }
    tensors_.output_offset = bytes;
    tensors_.output_stride = Aligned(workload.LargestOutputBytes());
    bytes += tensors_.output_stride * exchanges;

    auto memory = client.AttachMemory(static_cast<uint64_t>(bytes));
    if (!memory.ok()) {
      return absl::Status(memory.status().code(),
                          fmt::format("shared memory: {}", std::string(memory.status().message())));
    }
    memory_ = *std::move(memory);
    tensors_.region = memory_->Slice(0, 0)->region();
    std::byte* const begin = memory_->bytes().data();
    tensors_.memory = reinterpret_cast<const char*>(begin);
    for (const auto& [k, activations] : workload.all_activations()) {
      std::memcpy(begin + tensors_.input_offset[k], activations.bytes.data(),
                  activations.bytes.size());
    }
    return absl::OkStatus();
  }

  const SharedTensors& tensors() const override { return tensors_; }

 private:
  std::unique_ptr<client::SharedMemory> memory_;
  SharedTensors tensors_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::Attach(
    const client::ClientOptions& connection, const Workload& workload, int64_t exchanges) {
  auto client = client::Client::Create(connection);
  if (!client.ok()) return client.status();
  auto region = std::make_unique<AttachedRegion>();
  if (absl::Status status = region->Map(**client, workload, exchanges); !status.ok()) return status;
  return region;
}

}  // namespace nibble::load
