// The run's side of the control socket: answers one line per connection, on a thread of its own.
// Whoever connects is the agent: requests are bounded in size, time and rate, and nothing that is
// sent does more than produce a refusal.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "util/file.h"

namespace cbench {

class ControlServer {
 public:
  /// Gets a request (at most kMaxControlBytes, any bytes) and returns the answer. Must not throw.
  using Handler = std::function<std::string(std::string_view)>;

  /// Listens at `path`, replacing what a dead run left there. Throws EnvironmentError.
  ControlServer(const std::string& path, Handler handler);
  ~ControlServer();  ///< stop()
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  /// Answers the request in progress, if any, then no more. The socket's file is gone afterwards.
  void stop();

 private:
  void serve();
  void answer(const Fd& client);

  std::string path_;
  Handler handler_;
  Fd listener_, wake_;
  std::thread thread_;
};

}  // namespace cbench
