// A server that faults are done to, and what must hold afterwards.
#ifndef NIBBLE_TESTS_INTEGRATION_FAULTS_FIXTURE_H_
#define NIBBLE_TESTS_INTEGRATION_FAULTS_FIXTURE_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/integration/fixture.h"

namespace nibble::testing {

class FaultsTest : public ::testing::Test {
 protected:
  static constexpr char kMatmulPath[] = "/nibble.v1.Linear/Matmul";

  // Starts a server with one golden layer resident, and notes what it uses when it is idle.
  void Start(std::vector<std::string> flags = {});
  // What must hold when every client of the test's own has gone: a request is answered with the
  // right bits, no request is counted as running or waiting, the server has the descriptors that it
  // had and hardly more threads, and no sanitizer has said anything.
  void ExpectWell();

  double Metric(const std::string& series) const;
  double Inflight() const { return Metric("nibble_inflight_requests"); }
  double QueuedRows() const { return Metric("nibble_queue_rows{device=\"cpu:0\"}"); }
  double Served(const std::string& method) const;
  size_t Descriptors() const;
  size_t Threads() const;

  // Looks again until it holds; a failure where that takes far longer than it should.
  static void WaitUntil(const char* what, const std::function<bool()>& holds);

  ServerProcess& server() { return *server_; }
  Stubs& stubs() { return *stubs_; }
  const std::string& layer() const { return golden_.layer; }
  // A request of five rows, and the bits of its answer.
  const v1::MatmulRequest& good() const { return good_; }
  const std::string& expected() const { return expected_; }

 private:
  Golden golden_;
  v1::MatmulRequest good_;
  std::string expected_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<Stubs> stubs_;
  size_t idle_descriptors_ = 0;
  size_t idle_threads_ = 0;
};

}  // namespace nibble::testing

#endif  // NIBBLE_TESTS_INTEGRATION_FAULTS_FIXTURE_H_
