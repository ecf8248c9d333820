// The relay's sockets: a path, and a port in another network namespace.
#include <array>
#include <cstring>

#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "relay/relay.h"
#include "util/error.h"
#include "util/passed_fds.h"

namespace cbench::relay {
namespace {

constexpr int kBacklog = 64;

/// Enters the network namespace, through the owning user namespace where that is needed.
bool enter(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid) + "/ns/";
  const Fd network(::open((process + "net").c_str(), O_RDONLY | O_CLOEXEC));
  const Fd user(::open((process + "user").c_str(), O_RDONLY | O_CLOEXEC));
  if (!network.valid()) return false;
  if (::setns(network.get(), CLONE_NEWNET) == 0) return true;
  return user.valid() && ::setns(user.get(), CLONE_NEWUSER) == 0 &&
         ::setns(network.get(), CLONE_NEWNET) == 0;
}

/// In the namespace, in a process of its own: binds and passes the socket to `to`. The exit code
/// says how far it came.
[[noreturn]] void bind_inside(pid_t pid, int port, int to) {
  if (!enter(pid)) ::_exit(1);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(fd, kBacklog) != 0) {
    ::_exit(2);
  }
  char byte = 'x';
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  PassedFds<1> passed;
  passed.attach(message, {&fd, 1});
  ::_exit(::sendmsg(to, &message, MSG_NOSIGNAL) == 1 ? 0 : 3);
}

Fd received(int from) {
  char byte;
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  PassedFds<1> passed;
  passed.make_room(message);
  if (::recvmsg(from, &message, MSG_CMSG_CLOEXEC) != 1) return {};
  return passed.taken(message);
}

}  // namespace

Fd listen_in_namespace(pid_t pid, int port) {
  std::array<int, 2> ends;
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw_errno("socketpair", "relay");
  }
  const Fd ours(ends[0]);
  Fd theirs(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) throw_errno("fork", "relay");
  if (child == 0) bind_inside(pid, port, theirs.get());
  theirs.reset();
  Fd listener = received(ours.get());
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (listener.valid()) return listener;
  const bool entered = WIFEXITED(status) && WEXITSTATUS(status) == 2;
  throw EnvironmentError(
      "relay_namespace",
      entered ? "port " + std::to_string(port) + " in the box's network is taken"
              : "the network of process " + std::to_string(pid) +
                    " cannot be entered: it has ended, or it is neither root's nor ours to enter");
}

Fd listen_at(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    throw EnvironmentError("relay_socket", path + ": not a usable path for a socket (at most " +
                                               std::to_string(sizeof address.sun_path - 1) +
                                               " bytes)");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const auto* plain = reinterpret_cast<const sockaddr*>(&address);
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) throw_errno("socket", path);
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) {
    const bool ours = S_ISSOCK(info.st_mode);
    if (!ours || ::connect(fd.get(), plain, sizeof address) == 0) {
      throw EnvironmentError("relay_socket", path + ": something is there already");
    }
    ::unlink(path.c_str());
  }
  if (::bind(fd.get(), plain, sizeof address) != 0 || ::chmod(path.c_str(), 0666) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    throw EnvironmentError("relay_socket", errno_message("listen", path));
  }
  return fd;
}

}  // namespace cbench::relay
