#include "tests/support/raw_connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace nibble::testing {

RawConnection::RawConnection(const std::string& address)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd_ >= 0 && connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
    close(std::exchange(fd_, -1));
  }
}

RawConnection::~RawConnection() {
  if (fd_ >= 0) close(fd_);
}

bool RawConnection::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool RawConnection::Receive(size_t bytes) {
  std::string received;
  while (received.size() < bytes) {
    if (!ReceiveSome(&received)) return false;
  }
  return true;
}

bool RawConnection::ReceiveUntil(std::string_view text) {
  std::string received;
  while (received.find(text) == std::string::npos) {
    if (!ReceiveSome(&received)) return false;
  }
  return true;
}

std::string RawConnection::ReceiveAll() {
  std::string received;
  while (ReceiveSome(&received)) {
  }
  return received;
}

bool RawConnection::ReceiveSome(std::string* received) {
  std::array<char, 4096> block{};
  ssize_t got = 0;
  do {
    got = recv(fd_, block.data(), block.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got > 0) received->append(block.data(), static_cast<size_t>(got));
  return got > 0;
}

void RawConnection::HalfClose() { shutdown(fd_, SHUT_WR); }

void RawConnection::Reset() {
  const linger at_once{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  close(std::exchange(fd_, -1));
}

namespace http2 {
namespace {

// Of HPACK, with a prefix of 7 bits.
std::string Length(size_t length) {
  constexpr size_t kPrefix = 127;
  if (length < kPrefix) return {static_cast<char>(length)};
  std::string out(1, static_cast<char>(kPrefix));
  for (length -= kPrefix; length >= 128; length >>= 7) {
    out.push_back(static_cast<char>((length & 127) | 128));
  }
  out.push_back(static_cast<char>(length));
  return out;
}

}  // namespace

std::string BigEndian32(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  std::string frame = BigEndian32(static_cast<uint32_t>(payload.size())).substr(1);
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  frame += BigEndian32(stream);
  frame += payload;
  return frame;
}

std::string Settings(const std::vector<std::pair<uint16_t, uint32_t>>& settings) {
  std::string payload;
  for (const auto& [id, value] : settings)
    payload += BigEndian32(id).substr(2) + BigEndian32(value);
  return Frame(kSettings, kNone, 0, payload);
}

std::string Hello(const std::vector<std::pair<uint16_t, uint32_t>>& settings) {
  return std::string(kPreface) + Settings(settings);
}

std::string Fields(const std::vector<std::pair<std::string, std::string>>& fields) {
  std::string block;
  for (const auto& [name, value] : fields) {
    block.push_back('\0');  // literal, not indexed, with a name
    block += Length(name.size()) + name + Length(value.size()) + value;
  }
  return block;
}

std::string RequestFields(const std::string& path) {
  return Fields({{":method", "POST"},
                 {":scheme", "http"},
                 {":path", path},
                 {":authority", "localhost"},
                 {"te", "trailers"},
                 {"content-type", "application/grpc"}});
}

std::string Message(std::string_view message, uint32_t bytes) {
  std::string framed(1, '\0');
  framed += BigEndian32(bytes);
  framed += message;
  return framed;
}

}  // namespace http2
}  // namespace nibble::testing
