#include "server/service/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "nibble/status.h"

namespace nibble::server {
namespace {

using ::testing::HasSubstr;

class CredentialsTest : public ::testing::Test {
 protected:
  CredentialsTest()
      : directory_(::testing::TempDir() + "/credentials-" + std::to_string(getpid())) {
    std::filesystem::create_directories(directory_);
  }
  ~CredentialsTest() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  // Writes NAME.pem, certified by itself, and NAME.key.
  void MakePair(const std::string& name, const EVP_CIPHER* cipher = nullptr) {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    ASSERT_NE(key, nullptr);
    X509* certificate = X509_new();
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    ASSERT_GT(X509_sign(certificate, key, EVP_sha256()), 0);
    std::FILE* file = std::fopen(Path(name + ".pem").c_str(), "w");
    ASSERT_EQ(PEM_write_X509(file, certificate), 1);
    std::fclose(file);
    file = std::fopen(Path(name + ".key").c_str(), "w");
    unsigned char password[] = "secret";
    ASSERT_EQ(PEM_write_PrivateKey(file, key, cipher, cipher == nullptr ? nullptr : password,
                                   cipher == nullptr ? 0 : 6, nullptr, nullptr),
              1);
    std::fclose(file);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }

  void ExpectRefused(const TlsFiles& files, const std::string& flag, const std::string& word) {
    const auto credentials = MakeServerCredentials(files);
    ASSERT_FALSE(credentials.ok());
    EXPECT_EQ(credentials.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(MessageOf(credentials.status())), HasSubstr(flag));
    EXPECT_THAT(std::string(MessageOf(credentials.status())), HasSubstr(word));
  }

  const std::string directory_;
};

TEST_F(CredentialsTest, APairIsTaken) {
  MakePair("a");
  EXPECT_TRUE(MakeServerCredentials({Path("a.pem"), Path("a.key"), ""}).ok());
  EXPECT_TRUE(MakeServerCredentials({Path("a.pem"), Path("a.key"), Path("a.pem")}).ok());
  EXPECT_TRUE(MakeServerCredentials({}).ok());
}

TEST_F(CredentialsTest, FilesThatWouldRefuseEveryConnectionAreRefused) {
  MakePair("a");
  MakePair("b");
  MakePair("locked", EVP_aes_128_cbc());
  std::ofstream(Path("torn.pem")) << "-----BEGIN CERTIFICATE-----\nZZ\n-----END CERTIFICATE-----\n";
  std::ofstream(Path("empty")) << "";
  ExpectRefused({Path("a.pem"), Path("b.key"), ""}, "--tls-key", "b.key");
  ExpectRefused({Path("torn.pem"), Path("a.key"), ""}, "--tls-cert", "torn.pem");
  ExpectRefused({Path("none"), Path("a.key"), ""}, "--tls-cert", "none");
  ExpectRefused({Path("a.pem"), Path("empty"), ""}, "--tls-key", "empty");
  ExpectRefused({Path("a.pem"), Path("locked.key"), ""}, "--tls-key", "password");
  ExpectRefused({Path("a.pem"), Path("a.key"), Path("a.key")}, "--tls-client-ca", "a.key");
}

TEST_F(CredentialsTest, TheLastGoodPairStaysUntilAnotherOneIsWhole) {
  MakePair("a");
  MakePair("b");
  const auto install = [this](const std::string& from, const std::string& to) {
    std::filesystem::copy_file(Path(from), Path(to + ".new"));
    std::filesystem::rename(Path(to + ".new"), Path(to));
  };
  install("a.pem", "pem");
  install("a.key", "key");
  auto files = CertificateFiles::Open({Path("pem"), Path("key"), ""});
  ASSERT_TRUE(files.ok());
  const auto first = (*files)->Current();
  EXPECT_EQ((*files)->Current(), first);
  install("b.key", "key");
  EXPECT_EQ((*files)->Current(), first);
  install("b.pem", "pem");
  const auto second = (*files)->Current();
  EXPECT_NE(second, first);
  EXPECT_NE(second->cert, first->cert);
  std::filesystem::remove(Path("pem"));
  EXPECT_EQ((*files)->Current(), second);
}

TEST_F(CredentialsTest, AChangeWithinTheSameMomentIsSeen) {
  // In place, with the time that the files had, which has not passed yet.
  const auto time = std::filesystem::file_time_type::clock::now() + std::chrono::hours(1);
  const auto write = [&] {
    MakePair("a");
    std::filesystem::last_write_time(Path("a.pem"), time);
    std::filesystem::last_write_time(Path("a.key"), time);
  };
  write();
  auto files = CertificateFiles::Open({Path("a.pem"), Path("a.key"), ""});
  ASSERT_TRUE(files.ok());
  const auto first = (*files)->Current();
  write();
  EXPECT_NE((*files)->Current()->cert, first->cert);
}

}  // namespace
}  // namespace nibble::server
