// A TCP connection that says whatever a test likes, and the bytes of HTTP/2.
#ifndef NIBBLE_TESTS_SUPPORT_RAW_CONNECTION_H_
#define NIBBLE_TESTS_SUPPORT_RAW_CONNECTION_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::testing {

class RawConnection {
 public:
  // To "127.0.0.1:PORT".
  explicit RawConnection(const std::string& address);
  ~RawConnection();
  RawConnection(RawConnection&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RawConnection& operator=(RawConnection&&) = delete;

  bool connected() const { return fd_ >= 0; }
  // False when the peer has closed the connection.
  bool Send(std::string_view bytes);
  // Blocks until at least `bytes` have been received in all.
  bool Receive(size_t bytes);
  // Blocks until `text` has been received.
  bool ReceiveUntil(std::string_view text);
  // Blocks until the peer has closed the connection; what it has sent.
  std::string ReceiveAll();
  // Says that nothing more is sent.
  void HalfClose();
  // Closes with a reset instead of an orderly end.
  void Reset();

 private:
  bool ReceiveSome(std::string* received);

  int fd_ = -1;
};

namespace http2 {

enum Type : uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kRstStream = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};
enum Flag : uint8_t { kNone = 0, kEndStream = 1, kAck = 1, kEndHeaders = 4, kPadded = 8 };
enum Setting : uint16_t { kMaxFrameSize = 5, kInitialWindowSize = 4, kHeaderTableSize = 1 };

inline constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string BigEndian32(uint32_t value);
std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload);
std::string Settings(const std::vector<std::pair<uint16_t, uint32_t>>& settings = {});
// Preface and settings.
std::string Hello(const std::vector<std::pair<uint16_t, uint32_t>>& settings = {});
// Headers, uncompressed.
std::string Fields(const std::vector<std::pair<std::string, std::string>>& fields);
// The headers of a gRPC request of "/service/method".
std::string RequestFields(const std::string& path);
// A message as gRPC frames it; `bytes` may be other than its length.
std::string Message(std::string_view message, uint32_t bytes);
inline std::string Message(std::string_view message) {
  return Message(message, static_cast<uint32_t>(message.size()));
}

}  // namespace http2
}  // namespace nibble::testing

#endif  // NIBBLE_TESTS_SUPPORT_RAW_CONNECTION_H_
