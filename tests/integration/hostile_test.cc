// Peers that fall silent, come in crowds, or break the rules of HTTP/2.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <random>
#include <utility>

#include "tests/integration/faults_fixture.h"
#include "tests/support/raw_connection.h"

namespace nibble::testing {
namespace {

using grpc::StatusCode;

class Connections : public FaultsTest {
 protected:
  std::string Address() { return server().data_address(); }

  // Ends of a connection's beginning at which a peer may fall silent.
  std::vector<std::string> Beginnings() {
    const std::string headers =
        http2::Frame(http2::kHeaders, http2::kEndHeaders, 1, http2::RequestFields(kMatmulPath));
    const std::string message = http2::Message(good().SerializeAsString());
    const std::string data = http2::Frame(http2::kData, http2::kNone, 1, message);
    const std::string hello = http2::Hello();
    return {"",
            hello.substr(0, 10),
            std::string(http2::kPreface),
            hello.substr(0, hello.size() - 3),
            hello,
            hello + headers.substr(0, 5),
            hello + headers.substr(0, headers.size() / 2),
            hello + headers,
            hello + headers + data.substr(0, 4),
            hello + headers + data.substr(0, data.size() / 2)};
  }
};

TEST_F(Connections, HalfOpenOnesHoldUpNobody) {
  Start();
  for (const bool reset : {false, true}) {
    std::vector<RawConnection> connections;
    for (int i = 0; i < 20; ++i) {
      for (const std::string& beginning : Beginnings()) {
        connections.emplace_back(Address());
        ASSERT_TRUE(connections.back().connected());
        connections.back().Send(beginning);
      }
    }
    v1::MatmulResponse response;
    Stubs another(server());
    ASSERT_TRUE(Matmul(another, good(), &response).ok());
    EXPECT_EQ(response.y().data(), expected());
    if (reset) {
      for (RawConnection& connection : connections) connection.Reset();
    }
  }
  ExpectWell();
}

TEST_F(Connections, OnesThatNeverSayHelloAreClosed) {
  Start({"--handshake-timeout-ms=50"});
  std::vector<RawConnection> connections;
  for (int i = 0; i < 20; ++i) {
    for (const std::string& beginning : {std::string(), std::string(http2::kPreface)}) {
      connections.emplace_back(Address());
      connections.back().Send(beginning);
    }
  }
  for (RawConnection& connection : connections) connection.ReceiveAll();
  ExpectWell();
}

TEST_F(Connections, TenThousandComeAndGo) {
  Start();
  constexpr int kWaves = 50;
  constexpr int kAtOnce = 200;
  const std::string hello = http2::Hello();
  for (int wave = 0; wave < kWaves; ++wave) {
    std::vector<RawConnection> connections;
    for (int i = 0; i < kAtOnce; ++i) {
      connections.emplace_back(Address());
      ASSERT_TRUE(connections.back().connected());
      // In turn: greeted and let go, let go at once, reset.
      if (i % 3 == 0) connections.back().Send(hello);
      if (i % 3 == 2) connections.back().Reset();
    }
    // The server has taken them all once it has greeted the last one that said hello.
    EXPECT_TRUE(connections[kAtOnce - 2].Receive(9));
  }
  ExpectWell();
}

TEST_F(Connections, MoreThanThereAreDescriptorsAreRefusedAndTheServerGoesOn) {
  Start();
  const rlimit few{Descriptors() + 40, Descriptors() + 40};
  ASSERT_EQ(prlimit(server().pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  for (int round = 0; round < 2; ++round) {
    std::vector<RawConnection> connections;
    for (int i = 0; i < 100; ++i) connections.emplace_back(Address());
    ASSERT_TRUE(server().WaitForLog("event=connections_refused"));
    // Who is connected is served, and there are descriptors for loads and metrics.
    v1::MatmulResponse response;
    EXPECT_TRUE(Matmul(stubs(), good(), &response).ok());
    EXPECT_TRUE(Load(stubs(), "small", "bnb_odd_elements").ok());
    // The last one of so many is refused at once.
    connections.back().ReceiveAll();
    connections.clear();
    WaitUntil("there is room again", [&] { return Descriptors() < few.rlim_cur / 2; });
    Stubs another(server());
    EXPECT_TRUE(Matmul(another, good(), &response).ok());
  }
  ExpectWell();
}

class Http2 : public Connections {
 protected:
  static std::string Garbage(size_t bytes) {
    std::mt19937 generator(7);
    std::string garbage(bytes, '\0');
    for (char& byte : garbage) byte = static_cast<char>(generator());
    return garbage;
  }
  static std::string Request(uint32_t stream) {
    return http2::Frame(http2::kHeaders, http2::kEndHeaders, stream,
                        http2::RequestFields(kMatmulPath));
  }
  // Says hello and `bytes`, and waits until the server has ended the connection.
  void ExpectEnded(const std::string& bytes) {
    RawConnection connection(Address());
    ASSERT_TRUE(connection.connected());
    connection.Send(bytes);
    connection.HalfClose();
    connection.ReceiveAll();
  }
};

TEST_F(Http2, OtherProtocolsAreTurnedAway) {
  Start();
  for (const std::string& bytes :
       {Garbage(1), Garbage(100), Garbage(100000), std::string("GET / HTTP/1.1\r\n\r\n"),
        std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + Garbage(500),
        std::string(200000, '\0'), std::string(http2::kPreface) + Garbage(1000)}) {
    ExpectEnded(bytes);
  }
  ExpectWell();
}

TEST_F(Http2, BadFramesEndTheirConnectionAlone) {
  using namespace http2;
  Start();
  const std::string hello = Hello();
  const std::string open = hello + Request(1);
  const std::string zeros(16, '\0');
  const std::vector<std::pair<const char*, std::string>> cases = {
      {"a settings frame of 5 bytes", std::string(kPreface) + Frame(kSettings, kNone, 0, "12345")},
      {"settings on a stream", hello + Frame(kSettings, kNone, 1, "")},
      {"an acknowledgement with a payload", hello + Frame(kSettings, kAck, 0, "123456")},
      {"a window over the limit", Hello({{kInitialWindowSize, 0xFFFFFFFFu}})},
      {"a frame size under the limit", Hello({{kMaxFrameSize, 1}})},
      {"no first settings", std::string(kPreface) + Frame(kPing, kNone, 0, "12345678")},
      {"a ping of 3 bytes", hello + Frame(kPing, kNone, 0, "123")},
      {"data of no stream", hello + Frame(kData, kNone, 0, "abc")},
      {"data of an idle stream", hello + Frame(kData, kNone, 9, "abc")},
      {"headers of no stream", hello + Frame(kHeaders, kEndHeaders, 0, RequestFields("/a/b"))},
      {"headers of an even stream", hello + Frame(kHeaders, kEndHeaders, 2, RequestFields("/a/b"))},
      {"streams that go back", open + Request(5) + Request(3)},
      {"headers that are no HPACK", hello + Frame(kHeaders, kEndHeaders, 1, Garbage(300))},
      {"a table index out of range", hello + Frame(kHeaders, kEndHeaders, 1, "\xFF\xFF\xFF\x7F")},
      {"a length without end",
       hello + Frame(kHeaders, kEndHeaders, 1, std::string("\0\x7F", 2) + std::string(40, '\xFF'))},
      {"a continuation of nothing", hello + Frame(kContinuation, kEndHeaders, 1, "abc")},
      {"another frame within headers", hello + Frame(kHeaders, kNone, 1, RequestFields("/a/b")) +
                                           Frame(kPing, kNone, 0, "12345678")},
      {"a pushed stream", hello + Frame(kPushPromise, kEndHeaders, 1, zeros)},
      {"a reset of 1 byte", open + Frame(kRstStream, kNone, 1, "x")},
      {"a reset of an idle stream", hello + Frame(kRstStream, kNone, 7, BigEndian32(8))},
      {"a window update of 0", open + Frame(kWindowUpdate, kNone, 1, BigEndian32(0))},
      {"windows past the limit", hello + Frame(kWindowUpdate, kNone, 0, BigEndian32(0x7FFFFFFF)) +
                                     Frame(kWindowUpdate, kNone, 0, BigEndian32(0x7FFFFFFF))},
      {"padding longer than the frame", open + Frame(kData, kPadded, 1, "\xFFx")},
      {"a frame longer than allowed", hello + BigEndian32(0xFFFFFF00).substr(0, 3) +
                                          std::string(6, '\0') + std::string(70000, 'x')},
      {"a stream that depends on itself", hello + Frame(kPriority, kNone, 1, BigEndian32(1) + "x")},
      {"unknown frames", hello + Frame(0xEE, 0xFF, 0, Garbage(5000)) + Frame(0xEF, 0, 77, "")},
      {"a goaway and more",
       hello + Frame(kGoAway, kNone, 0, BigEndian32(0) + BigEndian32(0)) + Request(1)},
  };
  for (const auto& [what, bytes] : cases) {
    SCOPED_TRACE(what);
    ExpectEnded(bytes);
    v1::MatmulResponse response;
    ASSERT_TRUE(Matmul(stubs(), good(), &response).ok());
  }
  ExpectWell();
}

TEST_F(Http2, HeaderListsWithoutEndAreRefused) {
  using namespace http2;
  Start();
  std::vector<std::pair<std::string, std::string>> many;
  for (int i = 0; i < 2000; ++i) many.emplace_back("x-" + std::to_string(i), std::string(100, 'v'));
  const std::string block = RequestFields(kMatmulPath) + Fields(many);
  std::string frames;
  constexpr size_t kFrameBytes = 16000;
  for (size_t at = 0; at < block.size(); at += kFrameBytes) {
    frames += Frame(at == 0 ? kHeaders : kContinuation,
                    at + kFrameBytes < block.size() ? kNone : kEndHeaders, 1,
                    std::string_view(block).substr(at, kFrameBytes));
  }
  ExpectEnded(Hello() + frames);
  // One header that never ends.
  std::string endless =
      Frame(kHeaders, kNone, 1,
            RequestFields(kMatmulPath) + std::string("\0\x01x\x7F\xFF\xFF\xFF\x7F", 8));
  for (int i = 0; i < 20; ++i) endless += Frame(kContinuation, kNone, 1, std::string(16000, 'v'));
  ExpectEnded(Hello() + endless);
  // A client of the library is told.
  {
    Stubs another(server());
    grpc::ClientContext context;
    context.AddMetadata("x-large", std::string(100000, 'v'));
    v1::MatmulResponse response;
    EXPECT_EQ(another.linear->Matmul(&context, good(), &response).error_code(),
              StatusCode::RESOURCE_EXHAUSTED);
  }
  ExpectWell();
}

TEST_F(Http2, FloodsAreSurvived) {
  using namespace http2;
  Start();
  constexpr uint32_t kFrames = 2000;
  std::string resets = Hello();
  std::string pings = Hello();
  std::string settings = Hello();
  for (uint32_t i = 0; i < kFrames; ++i) {
    resets += Request(2 * i + 1) + Frame(kRstStream, kNone, 2 * i + 1, BigEndian32(8));
    pings += Frame(kPing, kNone, 0, "12345678");
    settings += Settings({{kInitialWindowSize, i}, {kHeaderTableSize, i}});
  }
  for (const std::string& flood : {resets, pings, settings}) {
    ExpectEnded(flood);
    v1::MatmulResponse response;
    ASSERT_TRUE(Matmul(stubs(), good(), &response).ok());
  }
  // Replies that the peer's window of 0 bytes never lets through, and then it goes away.
  {
    RawConnection connection(Address());
    std::string requests = Hello({{kInitialWindowSize, 0}});
    const std::string message = Message(good().SerializeAsString());
    for (uint32_t i = 0; i < 50; ++i) {
      requests += Request(2 * i + 1) + Frame(kData, kEndStream, 2 * i + 1, message);
    }
    const double served = Served("Matmul");
    ASSERT_TRUE(connection.Send(requests));
    WaitUntil("the requests are answered", [&] { return Served("Matmul") >= served + 50; });
  }
  ExpectWell();
}

}  // namespace
}  // namespace nibble::testing
