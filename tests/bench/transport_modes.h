// The two sides of the transport benchmark. Each runs in a process of its own, so that each has the
// allocator it is linked with.
#ifndef NIBBLE_TESTS_BENCH_TRANSPORT_MODES_H_
#define NIBBLE_TESTS_BENCH_TRANSPORT_MODES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace nibble::bench {

// Columns of x and y: a row is 8 KiB of BF16 each way.
inline constexpr int64_t kColumns = 4096;
inline constexpr char kWeight[] = "w";

struct ServeOptions {
  // "nibble": the server's own services and listener, over an executor that answers at once.
  // "bare": an Echo of a few lines on the callback API, messages by protobuf, stock settings.
  std::string mode;
  std::vector<std::string> addresses;
};

// Prints "ready" and serves until its standard input ends. The exit code.
int Serve(const ServeOptions& options);

struct CallOptions {
  // "echo": Echo with raw messages. "protobuf": Echo with protobuf messages. "matmul": Matmul with
  // raw messages. "stream": MatmulStream, several in flight. "shared": Matmul on shared memory.
  std::string mode;
  std::string address;
  int64_t rows = 1;
  int clients = 1;  // each with a thread and a connection of its own
  double seconds = 1;
};

// Closed loops of calls; prints one line of JSON. The exit code.
int Call(const CallOptions& options);

}  // namespace nibble::bench

#endif  // NIBBLE_TESTS_BENCH_TRANSPORT_MODES_H_
