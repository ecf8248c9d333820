#include "run/control.h"

#include <array>
#include <cerrno>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/version_client.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/log.h"

namespace cbench {
namespace {

constexpr double kRequestTime = 2;      // seconds for a client to say its line
constexpr double kLeastInterval = 0.1;  // seconds between two answers

/// The first line, or what came before the end; nothing when it is too long or too slow.
std::string read_request(const Fd& client) {
  std::string request;
  std::array<char, 1024> buffer;
  const double deadline = boot_seconds() + kRequestTime;
  while (request.find('\n') == std::string::npos) {
    const double left = deadline - boot_seconds();
    pollfd poller{client.get(), POLLIN, 0};
    if (left <= 0 || ::poll(&poller, 1, static_cast<int>(left * 1000) + 1) <= 0) return {};
    const ssize_t n = ::recv(client.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n <= 0) break;
    request.append(buffer.data(), static_cast<size_t>(n));
    if (request.size() > kMaxControlBytes) return {};
  }
  return request.substr(0, request.find('\n'));
}

}  // namespace

ControlServer::ControlServer(const std::string& path, Handler handler)
    : path_(path), handler_(std::move(handler)) {
  ::unlink(path.c_str());
  Fd directory;
  const sockaddr_un address = socket_address(path, directory);
  listener_ = Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  wake_ = Fd(::eventfd(0, EFD_CLOEXEC));
  if (!listener_.valid() || !wake_.valid()) throw_errno("socket", path);
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener_.get(), 8) != 0) {
    throw_errno("bind", path);
  }
  ::chmod(path.c_str(), 0666);
  thread_ = std::thread([this] { serve(); });
}

ControlServer::~ControlServer() { stop(); }

void ControlServer::stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  while (::write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
  listener_.reset();
  ::unlink(path_.c_str());
}

void ControlServer::serve() {
  while (true) {
    std::array<pollfd, 2> polls{{{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
    if (::poll(polls.data(), polls.size(), -1) < 0 && errno != EINTR) return;
    if (polls[1].revents != 0) return;
    if (polls[0].revents == 0) continue;
    const Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client.valid()) answer(client);
    // The rate is bounded here; a stop does not wait for it.
    pollfd wake{wake_.get(), POLLIN, 0};
    ::poll(&wake, 1, static_cast<int>(kLeastInterval * 1000));
  }
}

void ControlServer::answer(const Fd& client) {
  try {
    const std::string reply = handler_(read_request(client)) + "\n";
    // One small message fits the socket's buffer; a client that does not read loses it.
    if (::send(client.get(), reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
      spdlog::debug("control socket: the answer was not read");
    }
  } catch (const std::exception& error) {
    spdlog::warn("control socket: {}", error.what());
  }
}

}  // namespace cbench
