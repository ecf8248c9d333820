#include "relay/relay.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "relay/connection.h"
#include "relay/log.h"
#include "util/error.h"

namespace cbench::relay {
namespace {

/// Lives as long as the process: connections may outlast whoever started them.
struct Shared {
  explicit Shared(const RelayOptions& given) : options(given), log(given.log) {}
  RelayOptions options;
  CallLog log;
  std::atomic<int> connections = 0;
};

void accept_one(const Fd& listener, const std::shared_ptr<Shared>& shared) {
  Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.valid()) return;
  if (shared->connections >= shared->options.max_connections) {
    return Connection::turn_away(std::move(socket), shared->options);
  }
  ++shared->connections;
  try {
    std::thread([shared, socket = std::move(socket)]() mutable {
      try {
        Connection(std::move(socket), shared->options, shared->log).run();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "cbench relay: %s\n", error.what());
      }
      --shared->connections;
    }).detach();
  } catch (const std::system_error&) {
    --shared->connections;  // no thread to be had: the connection is lost, the relay is not
  }
}

Fd stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);  // before any thread starts
  ::signal(SIGPIPE, SIG_IGN);
  Fd fd(::signalfd(-1, &set, SFD_CLOEXEC));
  if (!fd.valid()) throw_errno("signalfd", "relay");
  return fd;
}

}  // namespace

int serve(const RelayOptions& options) {
  const Fd signals = stop_signals();
  std::vector<Fd> listeners;
  listeners.push_back(listen_at(options.socket));
  if (options.namespace_of > 0) {
    listeners.push_back(listen_in_namespace(options.namespace_of, options.port));
  }
  const auto shared = std::make_shared<Shared>(options);
  std::puts("listening");
  std::fflush(stdout);
  for (;;) {
    std::vector<pollfd> polls = {{signals.get(), POLLIN, 0}};
    for (const Fd& listener : listeners) polls.push_back({listener.get(), POLLIN, 0});
    if (::poll(polls.data(), polls.size(), -1) < 0 && errno != EINTR) throw_errno("poll", "relay");
    if (polls[0].revents != 0) break;
    for (size_t i = 0; i < listeners.size(); ++i) {
      if (polls[i + 1].revents != 0) accept_one(listeners[i], shared);
    }
  }
  shared->log.close();
  ::unlink(options.socket.c_str());
  // Not exit(): threads are still in the middle of calls that end here.
  std::_Exit(0);
}

}  // namespace cbench::relay
