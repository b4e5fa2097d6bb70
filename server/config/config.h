// The configuration: flags, a YAML or JSON file, or both (flags win). Validated as a whole; an
// unknown key or flag is an error that names it and the nearest known one.
#ifndef NIBBLE_SERVER_CONFIG_CONFIG_H_
#define NIBBLE_SERVER_CONFIG_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::server {

// NAME=DIR[,fuse=required|where-possible][,layers=PATTERN]; in a file NAME: DIR and so on.
struct ModelConfig {
  std::string name;
  std::string directory;
  std::string fuse;    // "required", "where-possible"; empty: no layer is fused
  std::string layers;  // a regular expression; empty: every layer
};

// Flag --max-batch-rows is key max_batch_rows. Defaults are those of a server on one machine.
struct Config {
  // Addresses. Data plane (one or more), control plane (each "host:port", "[v6]:port" or
  // "unix:path"), metrics ("host:port" or "[v6]:port"; empty turns metrics off). Port 0 picks a
  // free one. No two share a port.
  std::vector<std::string> listen = {"0.0.0.0:50051"};
  std::string control_listen = "127.0.0.1:50052";
  std::string metrics_listen = "0.0.0.0:9464";
  // Where the chosen ports are written, as "data=PORT\ncontrol=PORT\nmetrics=PORT\n", once the
  // server listens: of the first TCP address of a plane, 0 without one.
  std::string port_file;

  // Devices.
  std::string backend = "auto";     // auto, cpu, cuda
  std::vector<std::string> device;  // ids that may be used; empty: all
  int cpu_devices = 1;
  bool batch_invariant = false;
  bool autotune = false;       // not together with batch_invariant
  std::string autotune_cache;  // file; needs autotune
  int64_t autotune_budget_ms = 2000;
  uint64_t autotune_memory_bytes = uint64_t{1} << 30;
  int cpu_threads = 0;            // of each device; 0: cores / cpu_devices
  uint64_t cpu_memory_bytes = 0;  // of each device; 0: 80 % of physical memory / cpu_devices

  // Weights.
  std::string weights_root;        // Load is refused without it
  std::vector<ModelConfig> model;  // --model, repeated; in a file a map
  // NAME=FORMAT: what the unquantized layers of configured model NAME become; FORMAT is the text of
  // nibble::ParseQuantizeTarget.
  std::vector<std::string> quantize;
  uint64_t max_upload_bytes = uint64_t{8} << 30;
  uint64_t max_concurrent_upload_bytes = uint64_t{16} << 30;  // of all under way together

  // Callers on the same host.
  bool allow_shared_memory = false;
  uint64_t max_shared_memory_bytes = uint64_t{1} << 30;  // of all regions together

  // Measuring.
  bool enable_echo = false;

  // Limits.
  uint64_t max_message_bytes = uint64_t{256} << 20;
  int max_streams_per_connection = 1024;
  uint64_t max_transport_bytes = uint64_t{4} << 30;  // of all connections together
  int64_t handshake_timeout_ms = 20000;              // of a new connection
  int64_t stall_timeout_ms = 120000;                 // of a caller who reads, or uploads
  int64_t max_batch_rows = 1024;
  int64_t max_queue_rows = 131072;  // of each device
  uint64_t max_queue_bytes = uint64_t{1} << 30;
  int64_t max_queue_delay_us = 0;
  int64_t contended_batch_us = 1000;  // 0: no bound
  int batches_in_flight = 0;          // 0: what the device suggests

  // Ending.
  int64_t drain_grace_ms = 1000;     // NOT_SERVING is visible this long before the listener closes
  int64_t drain_timeout_ms = 30000;  // accepted work is finished within this, else ended

  // Security. All paths of PEM or text files.
  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;    // given: clients must present a certificate (mutual TLS)
  std::string data_token_file;  // bearer tokens, one a line
  std::string control_token_file;

  std::string log_level = "info";  // debug, info, warn, error

  // Flags alone, no keys of the file.
  std::string config;         // the file that was read; empty: none
  bool check_config = false;  // validate, print, exit
  bool help = false;
  bool version = false;
};

// Parses the command line (argv[0] is skipped), reading --config FILE first. The last use of a flag
// counts; uses of --device and --model add up and replace what the file says. --help and --version
// answer at once, whatever else is there. kInvalidArgument lists every fault, one a line, each
// naming the flag, or the file, line and key, what was expected and what was received. Files that
// the configuration names are not opened.
absl::StatusOr<Config> ParseConfig(int argc, const char* const* argv);

// The usage text: every flag with its default and meaning.
std::string HelpText();

// The configuration as YAML that ParseConfig reads back; what --check-config prints.
std::string ToYaml(const Config& config);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_CONFIG_CONFIG_H_
