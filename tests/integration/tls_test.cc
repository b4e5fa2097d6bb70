// TLS: who is let in, on both planes, and certificates that change while the server runs.
#include <gmock/gmock.h>
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
using ::testing::HasSubstr;
using ::testing::Not;

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
  // A connection can fail by chance (AwaitConnection); one that may not be fails every time.
  static StatusCode Check(const std::string& address,
                          const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    StatusCode code = StatusCode::UNAVAILABLE;
    for (int i = 0; i < 3 && code == StatusCode::UNAVAILABLE; ++i) {
      code = CheckOnce(address, credentials);
    }
    return code;
  }
  static StatusCode CheckOnce(const std::string& address,
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

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(Path(name + ".new")) << text;
    std::filesystem::rename(Path(name + ".new"), Path(name));
  }
  // The certificate and the key of `name` as those of the server.
  void Install(const std::string& name) {
    Write("server.key", Read(name + ".key"));
    Write("server.pem", Read(name + ".pem"));
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
  const std::vector<std::string> addresses = {server.data_address(), server.control_address()};
  for (const std::string& address : addresses) ASSERT_EQ(Check(address, "ca"), StatusCode::OK);
  Install("stranger");
  for (const std::string& address : addresses) {
    EXPECT_EQ(Check(address, "other-ca"), StatusCode::OK);
    EXPECT_EQ(Check(address, "ca"), StatusCode::UNAVAILABLE);
  }
  EXPECT_TRUE(server.WaitForLog("event=certificates_taken"));
}

TEST_F(Tls, TheLastGoodCertificateOutlivesBrokenOnes) {
  ServerProcess server({"--tls-cert=" + Path("server.pem"), "--tls-key=" + Path("server.key")});
  const std::string good_certificate = Read("server.pem");
  const std::string good_key = Read("server.key");
  const std::vector<std::pair<std::string, std::string>> broken = {
      {Read("stranger.pem"), good_key},  // the key has not come yet
      {good_certificate, Read("stranger.key")},
      {"", good_key},
      {good_certificate, ""},
      {good_certificate.substr(0, good_certificate.size() / 2), good_key},
      {good_certificate, good_key.substr(0, good_key.size() / 2)},
      {"-----BEGIN CERTIFICATE-----\nZZ\n-----END CERTIFICATE-----\n", good_key},
      {std::string(100000, 'x'), std::string(100000, 'y')}};
  for (const auto& [certificate, key] : broken) {
    Write("server.key", key);
    Write("server.pem", certificate);
    for (const std::string& address : {server.data_address(), server.control_address()}) {
      EXPECT_EQ(Check(address, "ca"), StatusCode::OK);
    }
  }
  EXPECT_TRUE(server.WaitForLog("event=certificates_refused"));
  std::filesystem::remove(Path("server.pem"));
  std::filesystem::remove(Path("server.key"));
  EXPECT_EQ(Check(server.data_address(), "ca"), StatusCode::OK);
  // And a good pair is taken again.
  Install("stranger");
  EXPECT_EQ(Check(server.data_address(), "other-ca"), StatusCode::OK);
  EXPECT_EQ(Check(server.data_address(), "ca"), StatusCode::UNAVAILABLE);
}

TEST_F(Tls, AnotherAuthorityOfClientsIsTakenAndABrokenOneIsNot) {
  ServerProcess server({"--tls-cert=" + Path("server.pem"), "--tls-key=" + Path("server.key"),
                        "--tls-client-ca=" + Path("clients.pem")});
  // Without the file the server does not start.
  EXPECT_EQ(server.ExitCode(), 1);
  Write("clients.pem", Read("ca.pem"));
  ServerProcess second({"--tls-cert=" + Path("server.pem"), "--tls-key=" + Path("server.key"),
                        "--tls-client-ca=" + Path("clients.pem")});
  const std::string address = second.control_address();
  ASSERT_EQ(Check(address, "ca", "client"), StatusCode::OK);
  for (const std::string& broken : {std::string(), std::string("nothing")}) {
    Write("clients.pem", broken);
    EXPECT_EQ(Check(address, "ca", "client"), StatusCode::OK);
    EXPECT_EQ(Check(address, "ca", "stranger"), StatusCode::UNAVAILABLE);
    EXPECT_EQ(Check(address, "ca"), StatusCode::UNAVAILABLE);
  }
  Write("clients.pem", Read("other-ca.pem"));
  EXPECT_EQ(Check(address, "ca", "stranger"), StatusCode::OK);
  EXPECT_EQ(Check(address, "ca", "client"), StatusCode::UNAVAILABLE);
}

TEST_F(Tls, SecretsAreNeverLogged) {
  Write("data-tokens", "data-secret-1\ndata-secret-2\n");
  Write("control-tokens", "control-secret\n");
  ServerProcess server({"--tls-cert=" + Path("server.pem"), "--tls-key=" + Path("server.key"),
                        "--data-token-file=" + Path("data-tokens"),
                        "--control-token-file=" + Path("control-tokens"), "--log-level=debug"});
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = Read("ca.pem");
  const auto credentials = grpc::SslCredentials(options);
  const auto linear = v1::Linear::NewStub(grpc::CreateChannel(server.data_address(), credentials));
  const auto weights =
      v1::Weights::NewStub(grpc::CreateChannel(server.control_address(), credentials));
  const auto matmul = [&](const std::string& token) {
    grpc::ClientContext context;
    SetDeadline(context);
    context.AddMetadata("authorization", "Bearer " + token);
    v1::MatmulResponse response;
    return linear->Matmul(&context, MatmulOf("no/such", RandomBF16(1, 8, 1)), &response);
  };
  const auto unload = [&](const std::string& token) {
    grpc::ClientContext context;
    SetDeadline(context);
    context.AddMetadata("authorization", "Bearer " + token);
    v1::UnloadRequest request;
    request.set_name("no/such");
    v1::UnloadResponse response;
    return weights->Unload(&context, request, &response);
  };
  for (const auto& [status, code] : std::vector<std::pair<grpc::Status, StatusCode>>{
           {matmul("data-secret-2"), StatusCode::NOT_FOUND},
           {matmul("control-secret"), StatusCode::PERMISSION_DENIED},
           {matmul("guessed-secret"), StatusCode::UNAUTHENTICATED},
           {unload("control-secret"), StatusCode::NOT_FOUND},
           {unload("data-secret-1"), StatusCode::PERMISSION_DENIED}}) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), Not(HasSubstr("secret")));
  }
  // A key that does not fit, so that the files are spoken of.
  const std::string key = Read("server.key");
  Write("server.key", Read("client.key"));
  EXPECT_EQ(Check(server.data_address(), "ca"), StatusCode::OK);
  ASSERT_TRUE(server.WaitForLog("event=certificates_refused"));
  const std::string log = server.log();
  EXPECT_THAT(log, Not(HasSubstr("secret")));
  for (const std::string& secret : {key, Read("client.key")}) {
    std::istringstream lines(secret);
    for (std::string line; std::getline(lines, line);) {
      if (line.size() < 20 || line.front() == '-') continue;
      EXPECT_THAT(log, Not(HasSubstr(line)));
    }
  }
}

TEST_F(Tls, AFileThatIsNoCertificateIsNamed) {
  std::ofstream(Path("empty.pem")) << "nothing\n";
  ServerProcess server({"--tls-cert=" + Path("empty.pem"), "--tls-key=" + Path("server.key")});
  EXPECT_EQ(server.ExitCode(), 1);
  EXPECT_NE(server.log().find("--tls-cert"), std::string::npos) << server.log();
}

}  // namespace
}  // namespace nibble::testing
