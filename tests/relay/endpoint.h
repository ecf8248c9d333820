// For tests: a scripted model endpoint, a relay in front of it, and a client on the relay's socket.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "relay/policy.h"
#include "util/file.h"
#include "util/json.h"
#include "util/process.h"

namespace cbench::relay {

/// fixtures/agent_endpoints as a process on a free port of this machine.
class Endpoint {
 public:
  explicit Endpoint(Api api, std::vector<std::string> arguments = {});
  std::string url() const { return "http://127.0.0.1:" + port_; }
  std::vector<Json> requests() const;  ///< what it was asked, with headers

 private:
  TempDir dir_;
  std::unique_ptr<Process> process_;
  std::string port_;
};

/// `cbench relay` for a route to `url`, with the key in an environment variable.
class RelayProcess {
 public:
  static constexpr const char* kKey = "sk-test-1234567890";
  RelayProcess(Api api, const std::string& url, std::vector<std::string> arguments = {});
  const std::string& socket() const { return socket_; }
  std::string command_line() const;  ///< as the machine's users see it
  std::string said() const;          ///< its standard output and error
  std::string log_text() const;
  std::vector<Json> log() const;
  Process& process() { return *process_; }

 private:
  TempDir dir_;
  std::string socket_;
  std::unique_ptr<Process> process_;
};

/// A connection to the relay's socket; bytes in, bytes out.
class Client {
 public:
  explicit Client(const std::string& socket);
  void send(std::string_view bytes);
  /// Reads until `text` is in what has come, or the end, or `seconds`; everything so far.
  const std::string& read_until(std::string_view text, double seconds = 10);
  bool ended() const { return ended_; }
  void hang_up() { fd_.reset(); }

 private:
  Fd fd_;
  std::string got_;
  bool ended_ = false;
};

/// A POST with a length; closes the connection afterwards unless `keep`.
std::string post(std::string_view path, std::string_view body, std::string_view fields = "",
                 bool keep = false);

/// A minimal body of the API that asks for streaming.
std::string question(Api api, bool stream = true);

}  // namespace cbench::relay
