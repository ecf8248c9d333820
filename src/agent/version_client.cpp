#include "agent/version_client.h"

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"
#include "util/json.h"
#include "util/text.h"

namespace cbench {
namespace {

[[noreturn]] void nobody(const std::string& why) {
  throw EnvironmentError("no_run", why + "; versions are saved only while a run is searching");
}

Fd connect_to(const std::string& path) {
  Fd directory;
  const sockaddr_un address = socket_address(path, directory);
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) throw_errno("socket", path);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    nobody(errno_message("connect", path));
  }
  return fd;
}

/// Everything up to the end of the connection.
std::string read_reply(const Fd& fd, double timeout) {
  const double deadline = boot_seconds() + timeout;
  std::string reply;
  std::array<char, 4096> buffer;
  while (reply.size() < kMaxControlBytes) {
    const double left = deadline - boot_seconds();
    if (left <= 0) nobody("no answer within the time limit");
    pollfd poller{fd.get(), POLLIN, 0};
    const int ready = ::poll(&poller, 1, static_cast<int>(std::min(left, 3600.0) * 1000) + 1);
    if (ready < 0 && errno != EINTR) throw_errno("poll", "control socket");
    if (ready <= 0) continue;
    const size_t n = read_some(fd, buffer.data(), buffer.size(), "control socket");
    if (n == 0) break;
    reply.append(buffer.data(), n);
  }
  return reply;
}

}  // namespace

sockaddr_un socket_address(const std::string& path, Fd& directory) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string text = path;
  if (text.size() >= sizeof address.sun_path) {
    const std::filesystem::path whole = path;
    const std::string parent = whole.parent_path().string();
    directory = Fd(::open(parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!directory.valid()) throw_errno("open", parent);
    text = "/proc/self/fd/" + std::to_string(directory.get()) + "/" + whole.filename().string();
  }
  if (text.size() >= sizeof address.sun_path) {
    throw UsageError("socket", printable(path) + ": too long for a socket");
  }
  std::memcpy(address.sun_path, text.c_str(), text.size() + 1);
  return address;
}

SavedVersion request_version(const std::string& socket, const std::string& note, double timeout) {
  const Fd fd = connect_to(socket);
  const std::string request = dump_json({{"command", "version"}, {"note", note}}) + "\n";
  if (request.size() > kMaxControlBytes) {
    throw UsageError("bad_note", "the note is too long: at most 300 bytes");
  }
  if (::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    nobody(errno_message("send", socket));
  }
  const std::string text = read_reply(fd, timeout);
  if (text.empty()) nobody("the run closed the connection");
  const Json reply = parse_json(text, "the answer of the run");
  if (!json_bool(reply, "ok", "the answer")) {
    throw UsageError(json_string(reply, "code", "the answer"),
                     json_string(reply, "message", "the answer"));
  }
  return {json_int(reply, "number", "the answer"), json_int(reply, "bytes", "the answer"),
          json_string(reply, "package_hash", "the answer"),
          json_number(reply, "seconds_left", "the answer")};
}

}  // namespace cbench
