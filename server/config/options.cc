#include "server/config/options.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "fmt/format.h"

namespace nibble::server {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// Bounds that keep sums and products of sizes within 63 bits.
constexpr uint64_t kMaxBytes = uint64_t{1} << 50;
constexpr uint64_t kHourMs = 3'600'000;

constexpr auto kOptions = std::to_array<Option>({
    {.key = "listen",
     .field = &Config::listen,
     .value = "ADDRESS,...",
     .meaning = "Data plane: HOST:PORT, [IPV6]:PORT or unix:PATH, one or more; port 0 picks a free "
                "one.",
     .check = CheckAddress},
    {.key = "control_listen",
     .field = &Config::control_listen,
     .value = "ADDRESS",
     .meaning = "Control plane (load, unload, list weights); loopback only unless said otherwise.",
     .check = CheckAddress},
    {.key = "metrics_listen",
     .field = &Config::metrics_listen,
     .value = "ADDRESS",
     .meaning = "Prometheus metrics at /metrics; empty turns them off.",
     .check = CheckMetricsAddress},
    {.key = "port_file",
     .field = &Config::port_file,
     .value = "FILE",
     .meaning = "Where the ports are written (data=, control=, metrics=) once the server listens."},
    {.key = "backend",
     .field = &Config::backend,
     .value = "NAME",
     .meaning = "auto (CUDA where there is a usable GPU, else CPU), cpu or cuda.",
     .check = CheckBackend},
    {.key = "device",
     .field = &Config::device,
     .value = "ID,...",
     .meaning = "Devices that may be used, such as cuda:0,cuda:1; all when not given.",
     .check = CheckDeviceId},
    {.key = "cpu_devices",
     .field = &Config::cpu_devices,
     .value = "COUNT",
     .meaning = "CPU devices to present.",
     .min = 1,
     .max = 256},
    {.key = "cpu_threads",
     .field = &Config::cpu_threads,
     .value = "COUNT",
     .meaning = "Threads of each CPU device; 0: the cores over the CPU devices.",
     .max = 4096},
    {.key = "cpu_memory_bytes",
     .field = &Config::cpu_memory_bytes,
     .value = "BYTES",
     .meaning = "Memory of each CPU device; 0: 80 % of physical memory over the CPU devices.",
     .max = kMaxBytes},
    {.key = "batch_invariant",
     .field = &Config::batch_invariant,
     .value = "",
     .meaning = "A row's answer has the same bits in every batch; on a GPU matmuls of more than 8 "
                "rows take longer for it."},
    {.key = "autotune",
     .field = &Config::autotune,
     .value = "",
     .meaning =
         "Measure on the idle device which kernels the weights that serve run best with, and "
         "use them. Not with --batch-invariant."},
    {.key = "autotune_cache",
     .field = &Config::autotune_cache,
     .value = "FILE",
     .meaning = "Where measurements are kept for the next start on the same device, driver and "
                "build. Needs --autotune."},
    {.key = "autotune_budget_ms",
     .field = &Config::autotune_budget_ms,
     .value = "MS",
     .meaning = "Longest time in milliseconds of measuring for each shape of weight.",
     .min = 1,
     .max = kHourMs},
    {.key = "autotune_memory_bytes",
     .field = &Config::autotune_memory_bytes,
     .value = "BYTES",
     .meaning = "Most device memory that measuring takes; a 64th of the device's at most.",
     .min = kMiB,
     .max = kMaxBytes},
    {.key = "weights_root",
     .field = &Config::weights_root,
     .value = "DIR",
     .meaning = "Directory below which clients may load weights; without it they may not."},
    {.key = "model",
     .field = &Config::model,
     .value = "NAME=DIR[,fuse=required|where-possible][,layers=PATTERN]",
     .meaning = "Load every linear layer of the checkpoint in DIR at start, as NAME/LAYER; "
                "repeatable. In a file: a map of NAME: DIR.",
     .check = CheckModelName},
    {.key = "quantize",
     .field = &Config::quantize,
     .value = "NAME=FORMAT,...",
     .meaning = "What the unquantized layers of model NAME become as they are loaded, such as "
                "nf4+nested, int4+group=64, fp8+channel.",
     .check = CheckQuantize},
    {.key = "max_upload_bytes",
     .field = &Config::max_upload_bytes,
     .value = "BYTES",
     .meaning = "Largest upload of weights.",
     .min = 1,
     .max = kMaxBytes},
    {.key = "max_concurrent_upload_bytes",
     .field = &Config::max_concurrent_upload_bytes,
     .value = "BYTES",
     .meaning = "Most bytes of all uploads under way together.",
     .min = 1,
     .max = kMaxBytes},
    {.key = "allow_shared_memory",
     .field = &Config::allow_shared_memory,
     .value = "",
     .meaning = "Callers on this host, of this user, may pass tensors in shared memory "
                "(AttachMemory)."},
    {.key = "max_shared_memory_bytes",
     .field = &Config::max_shared_memory_bytes,
     .value = "BYTES",
     .meaning = "Most bytes of shared memory, all callers together.",
     .min = 1,
     .max = kMaxBytes},
    {.key = "enable_echo",
     .field = &Config::enable_echo,
     .value = "",
     .meaning = "Answer Echo, the yardstick of the transport for load tests."},
    {.key = "max_message_bytes",
     .field = &Config::max_message_bytes,
     .value = "BYTES",
     .meaning = "Largest message of an RPC, in and out.",
     .min = 1024,
     .max = 2048 * kMiB - 1},
    {.key = "max_streams_per_connection",
     .field = &Config::max_streams_per_connection,
     .value = "COUNT",
     .meaning = "Most calls under way on one connection; further ones wait on the caller's side.",
     .min = 1,
     .max = 1 << 20},
    {.key = "max_transport_bytes",
     .field = &Config::max_transport_bytes,
     .value = "BYTES",
     .meaning = "Most memory of the transport for all connections; under pressure it reads more "
                "slowly and ends connections.",
     .min = 16 * kMiB,
     .max = kMaxBytes},
    {.key = "handshake_timeout_ms",
     .field = &Config::handshake_timeout_ms,
     .value = "MS",
     .meaning = "Time in milliseconds in which a new connection has to say that it speaks HTTP/2.",
     .min = 1,
     .max = kHourMs},
    {.key = "stall_timeout_ms",
     .field = &Config::stall_timeout_ms,
     .value = "MS",
     .meaning = "Time in milliseconds to take a reply, or to send an upload's next message; then "
                "the call is ended.",
     .min = 1,
     .max = kHourMs},
    {.key = "max_batch_rows",
     .field = &Config::max_batch_rows,
     .value = "ROWS",
     .meaning = "Most rows of a batch; larger requests are split.",
     .min = 1,
     .max = 1 << 20},
    {.key = "max_queue_rows",
     .field = &Config::max_queue_rows,
     .value = "ROWS",
     .meaning = "Most rows waiting for a device; requests beyond are refused.",
     .min = 1,
     .max = uint64_t{1} << 40},
    {.key = "max_queue_bytes",
     .field = &Config::max_queue_bytes,
     .value = "BYTES",
     .meaning = "Most bytes of input and output waiting for a device; requests beyond are refused.",
     .min = 1,
     .max = kMaxBytes},
    {.key = "max_queue_delay_us",
     .field = &Config::max_queue_delay_us,
     .value = "US",
     .meaning = "Longest time in microseconds that a batch which is not full waits for more rows.",
     .max = 60'000'000},
    {.key = "contended_batch_us",
     .field = &Config::contended_batch_us,
     .value = "US",
     .meaning =
         "While one caller floods others, batches take about this long in microseconds, or 1.5 "
         "times a small one; 0: no bound.",
     .max = 60'000'000},
    {.key = "batches_in_flight",
     .field = &Config::batches_in_flight,
     .value = "COUNT",
     .meaning = "Batches under way on a device at once; 0: what the device suggests.",
     .max = 64},
    {.key = "drain_grace_ms",
     .field = &Config::drain_grace_ms,
     .value = "MS",
     .meaning = "Time in milliseconds between NOT_SERVING and the refusal of new calls.",
     .max = kHourMs},
    {.key = "drain_timeout_ms",
     .field = &Config::drain_timeout_ms,
     .value = "MS",
     .meaning = "Time in milliseconds in which accepted work is finished at the end; what is left "
                "is cancelled.",
     .max = kHourMs},
    {.key = "tls_cert",
     .field = &Config::tls_cert,
     .value = "FILE",
     .meaning = "Certificate chain (PEM); turns TLS on. Needs --tls-key."},
    {.key = "tls_key",
     .field = &Config::tls_key,
     .value = "FILE",
     .meaning = "Private key (PEM) of --tls-cert."},
    {.key = "tls_client_ca",
     .field = &Config::tls_client_ca,
     .value = "FILE",
     .meaning = "Certificates (PEM) that clients must present one of (mutual TLS)."},
    {.key = "data_token_file",
     .field = &Config::data_token_file,
     .value = "FILE",
     .meaning = "Bearer tokens of the data plane, one a line; without it none is asked for."},
    {.key = "control_token_file",
     .field = &Config::control_token_file,
     .value = "FILE",
     .meaning = "Bearer tokens of the control plane, one a line; without it none is asked for."},
    {.key = "log_level",
     .field = &Config::log_level,
     .value = "LEVEL",
     .meaning = "debug, info, warn or error.",
     .check = CheckLogLevel},
    {.key = "config",
     .field = &Config::config,
     .value = "FILE",
     .meaning = "Read options from a YAML or JSON file first; flags win over it.",
     .in_file = false},
    {.key = "check_config",
     .field = &Config::check_config,
     .value = "",
     .meaning = "Check the configuration, print it as YAML and exit.",
     .in_file = false},
    {.key = "help",
     .field = &Config::help,
     .value = "",
     .meaning = "Print this text and exit.",
     .in_file = false},
    {.key = "version",
     .field = &Config::version,
     .value = "",
     .meaning = "Print the version and exit.",
     .in_file = false},
});

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, diagonal + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

std::span<const Option> Options() { return kOptions; }

std::string FlagOf(const Option& option) {
  std::string flag = fmt::format("--{}", option.key);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string Nearest(std::string_view word, const std::vector<std::string>& known) {
  constexpr size_t kMaxEdits = 3;
  constexpr size_t kMaxWordBytes = 64;
  std::string nearest;
  if (word.size() > kMaxWordBytes) return nearest;
  size_t least = std::min(kMaxEdits, word.size() / 2) + 1;
  for (const std::string& candidate : known) {
    const size_t edits = EditDistance(word, candidate);
    if (edits < least) {
      least = edits;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace nibble::server
