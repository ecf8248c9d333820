// The first process of a docker box: fetches the command, its environment, limits and descriptors
// from cbench over a socket, starts it, reaps orphans, and takes the whole box down when the
// command ends or cbench goes away, however it goes. Static and without the C++ library, so that it
// runs in any image; embedded in cbench by box/docker_entry.cpp.in. The protocol is in protocol.h.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "box_entry/protocol.h"

namespace {

using namespace cbench::entry;

constexpr int kCannotStart = 127;  // as shells do
constexpr int kFirstHigh = 512;    // descriptors wait here, out of the way of their final numbers

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "box: %s: %s\n", what, std::strerror(errno));
  ::_exit(kCannotStart);
}

int connect_to(const char* path) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  if (fd < 0 || ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    die("cbench is not there");
  }
  return fd;
}

void read_all(int fd, void* to, size_t size) {
  char* out = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t n = ::read(fd, out, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) die("cbench hung up");
    out += n;
    size -= static_cast<size_t>(n);
  }
}

struct Order {
  Header header{};
  int fds[kMaxFds + 1];  ///< the filter first
  char** argv = nullptr;
  char** env = nullptr;
  const char* numbers = nullptr;  ///< int32, unaligned
  const char* rlimits = nullptr;
};

/// Pointers to `count` strings of the payload; advances `at`.
char** strings(char*& at, const char* end, uint32_t count) {
  char** out = static_cast<char**>(std::calloc(count + 1, sizeof(char*)));
  if (out == nullptr) die("memory");
  for (uint32_t i = 0; i < count; ++i) {
    out[i] = at;
    const void* nul = std::memchr(at, 0, static_cast<size_t>(end - at));
    if (nul == nullptr) die("malformed order");
    at += std::strlen(at) + 1;
  }
  return out;
}

Order receive_order(int socket) {
  Order order;
  iovec part{&order.header, sizeof order.header};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof order.fds)];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n;
  do {
    n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
  } while (n < 0 && errno == EINTR);
  const Header& h = order.header;
  const cmsghdr* files = CMSG_FIRSTHDR(&message);
  if (n != sizeof h || h.magic != kMagic || h.fds > kMaxFds || h.payload > kMaxPayload ||
      files == nullptr || files->cmsg_len != CMSG_LEN((h.fds + 1) * sizeof(int))) {
    die("malformed order");
  }
  std::memcpy(order.fds, CMSG_DATA(files), (h.fds + 1) * sizeof(int));
  char* at = static_cast<char*>(std::malloc(h.payload + 1));
  if (at == nullptr) die("memory");
  read_all(socket, at, h.payload);
  const char* end = at + h.payload;
  order.argv = strings(at, end, h.argv);
  order.env = strings(at, end, h.env);
  order.numbers = at;
  order.rlimits = at + h.fds * sizeof(int32_t);
  if (order.rlimits + h.rlimits * sizeof(Rlimit) != end) die("malformed order");
  return order;
}

/// Every descriptor under its number; 0 to 2 are /dev/null unless given. The rest closes on exec.
void place_descriptors(const Order& order) {
  int high[kMaxFds];
  for (uint32_t i = 0; i < order.header.fds; ++i) {
    high[i] = ::fcntl(order.fds[i + 1], F_DUPFD_CLOEXEC, kFirstHigh);
    if (high[i] < 0) die("descriptor");
  }
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int standard = 0; standard < 3; ++standard) {
    if (null < 0 || ::dup2(null, standard) < 0) die("/dev/null");
  }
  if (null < 3) ::fcntl(null, F_SETFD, 0);
  for (uint32_t i = 0; i < order.header.fds; ++i) {
    int32_t number;
    std::memcpy(&number, order.numbers + i * sizeof number, sizeof number);
    if (::dup2(high[i], number) < 0) die("descriptor");
  }
}

void install_filter(int file) {
  alignas(sock_filter) static char program[kMaxFilter];
  size_t size = 0;
  for (ssize_t n;
       (n = ::pread(file, program + size, sizeof program - size, static_cast<off_t>(size))) > 0;) {
    size += static_cast<size_t>(n);
  }
  const sock_fprog filter{static_cast<unsigned short>(size / sizeof(sock_filter)),
                          reinterpret_cast<sock_filter*>(program)};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) die("no_new_privs");
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) die("seccomp");
}

[[noreturn]] void become_command(const Order& order, const sigset_t& signals) {
  ::setsid();
  // The filter's file may lie under a number that the command gets.
  const int filter = ::fcntl(order.fds[0], F_DUPFD_CLOEXEC, kFirstHigh);
  place_descriptors(order);
  for (uint32_t i = 0; i < order.header.rlimits; ++i) {
    Rlimit limit;
    std::memcpy(&limit, order.rlimits + i * sizeof limit, sizeof limit);
    const rlimit both{limit.value, limit.value};
    if (::setrlimit(static_cast<__rlimit_resource>(limit.resource), &both) != 0) die("rlimit");
  }
  ::sigprocmask(SIG_UNBLOCK, &signals, nullptr);
  install_filter(filter);
  environ = order.env;
  ::execvp(order.argv[0], order.argv);
  die(order.argv[0]);
}

/// True while the connection lives.
bool obey(int socket, pid_t command) {
  char word;
  const ssize_t n = ::recv(socket, &word, 1, MSG_DONTWAIT);
  if (n == 1 && word == kTerminate) ::kill(-command, SIGTERM);
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

/// Reaps; true with the status once the command itself has ended.
bool reap(pid_t command, int& status) {
  int any;
  for (pid_t pid; (pid = ::waitpid(-1, &any, WNOHANG)) > 0;) {
    if (pid != command) continue;
    status = any;
    return true;
  }
  return false;
}

int watch(int socket, int signals, pid_t command) {
  for (;;) {
    pollfd polls[2] = {{socket, POLLIN, 0}, {signals, POLLIN, 0}};
    if (::poll(polls, 2, -1) < 0 && errno != EINTR) return 1;
    if (polls[0].revents != 0 && !obey(socket, command)) return 128 + SIGKILL;
    if (polls[1].revents == 0) continue;
    signalfd_siginfo info;
    if (::read(signals, &info, sizeof info) != sizeof info) continue;
    if (info.ssi_signo == SIGTERM) ::kill(-command, SIGTERM);
    int status = 0;
    if (!reap(command, status)) continue;
    const int32_t said = status;
    ::send(socket, &said, sizeof said, MSG_NOSIGNAL);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return kCannotStart;
  // What runs here later has our user; it can neither trace us nor open our descriptors.
  ::prctl(PR_SET_DUMPABLE, 0);
  const int socket = connect_to(argv[1]);
  const Order order = receive_order(socket);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  sigaddset(&signals, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  const int signal_file = ::signalfd(-1, &signals, SFD_CLOEXEC);
  const pid_t command = ::fork();
  if (command < 0) die("fork");
  if (command == 0) become_command(order, signals);
  for (uint32_t i = 0; i <= order.header.fds; ++i) ::close(order.fds[i]);
  return watch(socket, signal_file, command);
}
