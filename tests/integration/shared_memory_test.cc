// Tensors in memory that caller and server share.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "tests/integration/fixture.h"

namespace nibble::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

constexpr char kNF4[] = "bnb_llama_1b_nf4";

// A region of the server, mapped here.
class Attached {
 public:
  Attached(Stubs& stubs, uint64_t bytes) : stream_(stubs.linear->AttachMemory(&context_)) {
    v1::AttachMemoryRequest request;
    request.set_bytes(bytes);
    if (!stream_->Write(request) || !stream_->Read(&region_)) return;
    fd_ = open(region_.path().c_str(), O_RDWR | O_CLOEXEC);
    if (fd_ < 0) return;
    void* mapped = mmap(nullptr, region_.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (mapped != MAP_FAILED) mapped_ = static_cast<char*>(mapped);
  }
  ~Attached() {
    context_.TryCancel();
    if (mapped_ != nullptr) munmap(mapped_, region_.bytes());
    if (fd_ >= 0) close(fd_);
  }

  grpc::Status End() {
    stream_->WritesDone();
    return stream_->Finish();
  }
  char* data() { return mapped_; }
  int fd() const { return fd_; }
  grpc::ClientReaderWriter<v1::AttachMemoryRequest, v1::AttachMemoryResponse>& stream() {
    return *stream_;
  }
  const v1::AttachMemoryResponse& region() const { return region_; }
  v1::SharedSlice Slice(uint64_t offset, uint64_t length) const {
    v1::SharedSlice slice;
    slice.set_region(region_.region());
    slice.set_offset(offset);
    slice.set_length(length);
    return slice;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AttachMemoryRequest, v1::AttachMemoryResponse>>
      stream_;
  v1::AttachMemoryResponse region_;
  int fd_ = -1;
  char* mapped_ = nullptr;
};

class SharedMemory : public ::testing::Test {
 protected:
  static constexpr uint64_t kMaxSharedBytes = uint64_t{1} << 20;

  static void SetUpTestSuite() {
    server_ = new ServerProcess({"--weights-root=" + GoldenRoot(), "--allow-shared-memory",
                                 "--max-shared-memory-bytes=1MiB"});
    stubs_ = new Stubs(*server_);
    ASSERT_TRUE(Load(*stubs_, kNF4, kNF4).ok());
    golden_ = new Golden(ReadGolden(kNF4));
  }
  static void TearDownTestSuite() {
    delete golden_;
    delete stubs_;
    delete server_;
  }

  static v1::MatmulRequest Good() { return MatmulOf(golden_->layer, golden_->x); }
  // x of the good request at `offset` of the region.
  static v1::MatmulRequest SharedX(Attached& attached, uint64_t offset) {
    v1::MatmulRequest request = Good();
    const std::string& x = request.x().data();
    std::memcpy(attached.data() + offset, x.data(), x.size());
    *request.mutable_x()->mutable_shared() = attached.Slice(offset, x.size());
    request.mutable_x()->clear_data();
    return request;
  }
  static void ExpectRefused(const v1::MatmulRequest& request, StatusCode code,
                            const std::string& part) {
    v1::MatmulResponse response;
    const grpc::Status status = Matmul(*stubs_, request, &response);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(part));
  }

  static ServerProcess* server_;
  static Stubs* stubs_;
  static Golden* golden_;
};

ServerProcess* SharedMemory::server_ = nullptr;
Stubs* SharedMemory::stubs_ = nullptr;
Golden* SharedMemory::golden_ = nullptr;

TEST_F(SharedMemory, TensorsTravelWithoutTheSocket) {
  v1::MatmulResponse expected;
  ASSERT_TRUE(Matmul(*stubs_, Good(), &expected).ok());
  const std::string& y = expected.y().data();
  Attached attached(*stubs_, 65536);
  ASSERT_NE(attached.data(), nullptr) << std::strerror(errno);
  v1::MatmulRequest request = SharedX(attached, 16);
  v1::MatmulResponse response;
  ASSERT_TRUE(Matmul(*stubs_, request, &response).ok());
  EXPECT_EQ(response.y().data(), y);

  *request.mutable_y_memory() = attached.Slice(8192, 20000);
  response.Clear();
  const grpc::Status status = Matmul(*stubs_, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(response.y().data().empty());
  EXPECT_EQ(response.y().shared().region(), attached.region().region());
  EXPECT_EQ(response.y().shared().offset(), 8192u);
  EXPECT_EQ(response.y().shared().length(), y.size());
  EXPECT_EQ(std::string(attached.data() + 8192, y.size()), y);
  EXPECT_THAT(response.y().shape(), ::testing::ElementsAreArray(expected.y().shape()));

  grpc::ClientContext context;
  SetDeadline(context);
  auto stream = stubs_->linear->MatmulStream(&context);
  std::memset(attached.data() + 8192, 0, y.size());
  ASSERT_TRUE(stream->Write(request));
  v1::MatmulStreamResponse reply;
  ASSERT_TRUE(stream->Read(&reply));
  EXPECT_EQ(reply.result().y().shared().length(), y.size());
  EXPECT_EQ(std::string(attached.data() + 8192, y.size()), y);
  EXPECT_TRUE(attached.End().ok());
}

TEST_F(SharedMemory, RowOpsUseItToo) {
  Attached attached(*stubs_, 65536);
  ASSERT_NE(attached.data(), nullptr);
  v1::NormQuantRequest norm;
  *norm.mutable_x() = RandomBF16(4, 64, 1);
  *norm.mutable_residual() = RandomBF16(4, 64, 2);
  *norm.mutable_gamma_inline() = RandomBF16(1, 64, 3);
  norm.mutable_quant()->set_mode(v1::QUANT_MODE_PER_TOKEN);
  const auto call = [&](v1::NormQuantResponse* response) {
    grpc::ClientContext context;
    SetDeadline(context);
    return stubs_->linear->NormQuant(&context, norm, response);
  };
  v1::NormQuantResponse expected;
  ASSERT_TRUE(call(&expected).ok());
  uint64_t offset = 0;
  for (v1::Tensor* tensor :
       {norm.mutable_x(), norm.mutable_residual(), norm.mutable_gamma_inline()}) {
    std::memcpy(attached.data() + offset, tensor->data().data(), tensor->data().size());
    *tensor->mutable_shared() = attached.Slice(offset, tensor->data().size());
    tensor->clear_data();
    offset += 4096;
  }
  *norm.mutable_y_memory() = attached.Slice(offset, 4096);
  *norm.mutable_residual_memory() = attached.Slice(offset + 4096, 4096);
  v1::NormQuantResponse response;
  const grpc::Status status = call(&response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.scales().data(), expected.scales().data());
  EXPECT_EQ(std::string(attached.data() + offset, expected.y().data().size()), expected.y().data());
  EXPECT_EQ(std::string(attached.data() + offset + 4096, expected.residual().data().size()),
            expected.residual().data());
}

TEST_F(SharedMemory, SlicesAreChecked) {
  Attached attached(*stubs_, 8192);
  ASSERT_NE(attached.data(), nullptr);
  const v1::MatmulRequest good = SharedX(attached, 0);
  const uint64_t bytes = good.x().shared().length();
  for (const auto& [offset, length] : {std::pair<uint64_t, uint64_t>{8192, bytes},
                                       {8192 - bytes + 1, bytes},
                                       {UINT64_MAX, bytes},
                                       {1, UINT64_MAX},
                                       {UINT64_MAX, UINT64_MAX}}) {
    v1::MatmulRequest request = good;
    *request.mutable_x()->mutable_shared() = attached.Slice(offset, length);
    ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "within the region's 8192 bytes");
    request = good;
    *request.mutable_y_memory() = attached.Slice(offset, length);
    ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "y_memory");
  }
  v1::MatmulRequest request = good;
  request.mutable_x()->mutable_shared()->set_length(bytes - 1);
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "x.data");
  request = good;
  request.mutable_x()->set_data("x");
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "received both");
  request = good;
  *request.mutable_y_memory() = attached.Slice(0, 1);
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "y_memory.length");
  request = good;
  request.mutable_x()->mutable_shared()->set_region("../../etc/passwd");
  ExpectRefused(request, StatusCode::NOT_FOUND, "x.shared.region");
}

TEST_F(SharedMemory, ARegionCannotBeShrunkByTheCaller) {
  Attached attached(*stubs_, 8192);
  ASSERT_NE(attached.data(), nullptr);
  EXPECT_EQ(ftruncate(attached.fd(), 0), -1);
  EXPECT_EQ(ftruncate(attached.fd(), 1 << 20), -1);
  const v1::MatmulRequest request = SharedX(attached, 0);
  v1::MatmulResponse response;
  EXPECT_TRUE(Matmul(*stubs_, request, &response).ok());
}

TEST_F(SharedMemory, ARegionIsGoneWithItsCall) {
  std::optional<v1::MatmulRequest> request;
  {
    Attached attached(*stubs_, 8192);
    ASSERT_NE(attached.data(), nullptr);
    request = SharedX(attached, 0);
    EXPECT_TRUE(attached.End().ok());
    EXPECT_EQ(open(attached.region().path().c_str(), O_RDWR), -1);
  }
  ExpectRefused(*request, StatusCode::NOT_FOUND, "region");
}

TEST_F(SharedMemory, TheLimitHoldsForAllRegionsAndIsGivenBack) {
  for (int round = 0; round < 3; ++round) {
    Attached all(*stubs_, kMaxSharedBytes);
    ASSERT_NE(all.data(), nullptr) << "round " << round;
    Attached more(*stubs_, 1);
    EXPECT_EQ(more.data(), nullptr);
    const grpc::Status refused = more.End();
    EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(refused.error_message(), HasSubstr("--max-shared-memory-bytes"));
    EXPECT_TRUE(all.End().ok());
  }
  Attached none(*stubs_, 0);
  EXPECT_EQ(none.End().error_code(), StatusCode::INVALID_ARGUMENT);
  Attached huge(*stubs_, UINT64_MAX);
  EXPECT_EQ(huge.End().error_code(), StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(SharedMemory, ACallTakesOneRequest) {
  Attached attached(*stubs_, 4096);
  ASSERT_NE(attached.data(), nullptr);
  v1::AttachMemoryRequest request;
  request.set_bytes(4096);
  EXPECT_TRUE(attached.stream().Write(request));
  EXPECT_EQ(attached.End().error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST(SharedMemoryOff, IsRefused) {
  ServerProcess server({});
  Stubs stubs(server);
  Attached attached(stubs, 4096);
  EXPECT_EQ(attached.data(), nullptr);
  const grpc::Status status = attached.End();
  EXPECT_EQ(status.error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--allow-shared-memory"));
}

TEST(SharedMemoryOff, ADrainDoesNotWaitForRegions) {
  ServerProcess server({"--allow-shared-memory", "--drain-grace-ms=0"});
  Stubs stubs(server);
  Attached attached(stubs, 4096);
  ASSERT_NE(attached.data(), nullptr);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.ExitCode(), 0);
  EXPECT_THAT(server.log(), HasSubstr("all_finished=true"));
  EXPECT_EQ(attached.End().error_code(), StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace nibble::testing
