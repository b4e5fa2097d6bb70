// TLS: who is let in, on both planes, and certificates that change while the server runs.
#include <grpc/support/log.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/integration/fixture.h"

namespace nibble::testing {
namespace {

using grpc::StatusCode;

class Tls : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Every refused connection would be a line of this process too.
    gpr_set_log_function([](gpr_log_func_args*) {});
  }
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "nibbled-tls-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
    MakeAuthority("ca");
    MakeAuthority("other-ca");
    MakeCertificate("server", "ca");
    MakeCertificate("client", "ca");
    MakeCertificate("stranger", "other-ca");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  void OpenSsl(const std::string& arguments) {
    const std::string command = "cd " + directory_ + " && openssl " + arguments + " 2>>openssl.log";
    ASSERT_EQ(std::system(command.c_str()), 0) << command << "\n" << Read("openssl.log");
  }
  // NAME.pem, signed by itself, and NAME.key.
  void MakeAuthority(const std::string& name) {
    OpenSsl("req -x509 " + NewKey(name) + " -days 1 -out " + name + ".pem");
  }
  // NAME.pem for this machine's loopback, signed by `authority`, and NAME.key.
  void MakeCertificate(const std::string& name, const std::string& authority) {
    OpenSsl("req " + NewKey(name) + " -addext subjectAltName=IP:127.0.0.1 -out " + name + ".csr");
    OpenSsl("x509 -req -in " + name + ".csr -CA " + authority + ".pem -CAkey " + authority +
            ".key -CAcreateserial -days 1 -copy_extensions copy -out " + name + ".pem");
  }
  std::string Read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(Path(name)).rdbuf();
    return text.str();
  }

  // The code of a health check on a new connection that trusts `authority`, as `client` if any.
  StatusCode Check(const std::string& address, const std::string& authority,
                   const std::string& client = "") const {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = Read(authority + ".pem");
    if (!client.empty()) {
      options.pem_cert_chain = Read(client + ".pem");
      options.pem_private_key = Read(client + ".key");
    }
    return Check(address, grpc::SslCredentials(options));
  }
  static StatusCode Check(const std::string& address,
                          const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto stub = grpc::health::v1::Health::NewStub(
        grpc::CreateCustomChannel(address, credentials, arguments));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(50));
    grpc::health::v1::HealthCheckResponse response;
    return stub->Check(&context, {}, &response).error_code();
  }

  std::string directory_;

 private:
  static std::string NewKey(const std::string& name) {
    return "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=" + name +
           " -keyout " + name + ".key";
  }
};

TEST_F(Tls, TheServerProvesWhoItIs) {
  ServerProcess server({"--tls-cert=" + Path("server.pem"), "--tls-key=" + Path("server.key")});
  for (const std::string& address : {server.data_address(), server.control_address()}) {
    EXPECT_EQ(Check(address, "ca"), StatusCode::OK);
    EXPECT_EQ(Check(address, "other-ca"), StatusCode::UNAVAILABLE);
    EXPECT_EQ(Check(address, grpc::InsecureChannelCredentials()), StatusCode::UNAVAILABLE);
  }
}

TEST_F(Tls, ClientsProveWhoTheyAre) {
  ServerProcess server({"--tls-cert=" + Path("server.pem"), "--tls-key=" + Path("server.key"),
                        "--tls-client-ca=" + Path("ca.pem")});
  for (const std::string& address : {server.data_address(), server.control_address()}) {
    EXPECT_EQ(Check(address, "ca", "client"), StatusCode::OK);
    EXPECT_EQ(Check(address, "ca"), StatusCode::UNAVAILABLE);
    EXPECT_EQ(Check(address, "ca", "stranger"), StatusCode::UNAVAILABLE);
  }
  EXPECT_TRUE(server.WaitForLog("level=warn event=grpc message="));
}

TEST_F(Tls, ANewCertificateIsTakenWithoutARestart) {
  ServerProcess server({"--tls-cert=" + Path("server.pem"), "--tls-key=" + Path("server.key")});
  ASSERT_EQ(Check(server.data_address(), "ca"), StatusCode::OK);
  std::filesystem::rename(Path("stranger.key"), Path("server.key"));
  std::filesystem::rename(Path("stranger.pem"), Path("server.pem"));
  while (Check(server.data_address(), "other-ca") != StatusCode::OK) std::this_thread::yield();
  EXPECT_EQ(Check(server.data_address(), "ca"), StatusCode::UNAVAILABLE);
}

TEST_F(Tls, AFileThatIsNoCertificateIsNamed) {
  std::ofstream(Path("empty.pem")) << "nothing\n";
  ServerProcess server({"--tls-cert=" + Path("empty.pem"), "--tls-key=" + Path("server.key")});
  EXPECT_EQ(server.ExitCode(), 1);
  EXPECT_NE(server.log().find("--tls-cert"), std::string::npos) << server.log();
}

}  // namespace
}  // namespace nibble::testing
