// The docker kind: a container without network, capabilities or a writable root, and the hand-over
// of command, descriptors and limits to its first process.
#include "box/docker.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "box/launch.h"
#include "box_entry/protocol.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/passed_fds.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr const char* kOwnerLabel = "cbench.owner";
constexpr double kStartTime = 120;  // seconds until a container runs: a cold disk, a busy engine
constexpr double kEndTime = 30;     // seconds until the engine has removed a dead container

std::string& chosen_image() {
  static std::string image;
  return image;
}

/// Root outside does not become root inside.
int box_user() { return ::geteuid() == 0 ? kBoxUser : static_cast<int>(::geteuid()); }
int box_group() { return ::geteuid() == 0 ? kBoxUser : static_cast<int>(::getegid()); }

/// As root, what the box may write is given to its user, and what it reads must be open to all.
void open_mount(const Mount& mount) {
  if (::geteuid() != 0) return;
  struct stat info {};
  if (::stat(mount.host.c_str(), &info) != 0) throw_errno("mount", mount.host);
  if (mount.writable) {
    if (info.st_uid == kBoxUser && info.st_gid == kBoxUser) return;
    if (::lchown(mount.host.c_str(), kBoxUser, kBoxUser) != 0) throw_errno("chown", mount.host);
    return;
  }
  const mode_t needed = S_ISDIR(info.st_mode) ? 05 : 04;
  if (info.st_uid == kBoxUser || (info.st_mode & needed) == needed) return;
  throw EnvironmentError("box_mount", mount.host + " is closed to the user inside a docker box (" +
                                          std::to_string(kBoxUser) + "): chmod -R o+rX it");
}

std::string mount_argument(const std::string& host, const std::string& inside, bool writable) {
  if (host.find_first_of(",\"\n") != std::string::npos ||
      inside.find_first_of(",\"\n") != std::string::npos) {
    throw EnvironmentError("box_mount", printable(host) +
                                            ": docker cannot mount a path with a comma, a quote or "
                                            "a line break");
  }
  return "type=bind,source=" + host + ",target=" + inside + (writable ? "" : ",readonly");
}

/// `docker run` for a box whose hand-over directory is given. The command, its environment and its
/// own limits are not in here: nothing of them shows in a process list.
std::vector<std::string> run_command(const BoxSpec& spec, const std::string& name,
                                     const std::string& image, const std::string& directory) {
  std::vector<std::string> args = {"docker", "run", "--rm"};
  const auto add = [&](std::initializer_list<std::string> more) { args.insert(args.end(), more); };
  const std::string size = std::to_string(spec.tmp_bytes);
  add({"--name", name, "--hostname", spec.hostname, "--label", "cbench.run=" + spec.label});
  add({"--label", std::string(kOwnerLabel) + "=" + box_owner(::getpid())});
  add({"--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"});
  add({"--pull", "never", "--log-driver", "none", "--network", spec.network ? "bridge" : "none"});
  add({"--workdir", spec.cwd, "--ulimit", "core=0", "--no-healthcheck"});
  add({"--tmpfs", "/tmp:rw,exec,nosuid,nodev,mode=1777,size=" + size, "--shm-size", size});
  add({"--user", std::to_string(box_user()) + ":" + std::to_string(box_group())});
  const Limits& limits = spec.limits;
  // One more for the first process.
  if (limits.processes != 0) add({"--pids-limit", std::to_string(limits.processes + 1)});
  if (limits.memory != 0) {
    const std::string bytes = std::to_string(limits.memory);
    add({"--memory", bytes, "--memory-swap", bytes});
  }
  if (spec.gpu) add({"--gpus", "device=" + spec.gpu->uuid});
  add({"--mount", mount_argument(directory, entry::kDirectory, false)});
  for (const Mount& mount : spec.mounts) {
    open_mount(mount);
    add({"--mount", mount_argument(mount.host, mount.inside, mount.writable)});
  }
  const std::string inside = entry::kDirectory;
  add({"--entrypoint", inside + "/entry", image, inside + "/socket"});
  return args;
}

/// The directory that is mounted into the box: its first program and the socket. Only the box's
/// user and we can reach it: it lies in a directory that is closed to others.
Fd fill_directory(const std::string& directory) {
  make_directories(directory);
  write_file_atomic(directory + "/entry", box_entry_program(), 0755);
  Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = directory + "/socket";
  if (path.size() >= sizeof address.sun_path) {
    throw EnvironmentError("box_unavailable", path +
                                                  " is too long for a socket: set TMPDIR to a "
                                                  "shorter path");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const auto* plain = reinterpret_cast<const sockaddr*>(&address);
  if (!listener.valid() || ::bind(listener.get(), plain, sizeof address) != 0 ||
      ::listen(listener.get(), 1) != 0) {
    throw_errno("listen", path);
  }
  for (const char* name : {"", "/entry", "/socket"}) {
    if (::chmod((directory + name).c_str(), name == std::string("/socket") ? 0666 : 0755) != 0) {
      throw_errno("chmod", directory);
    }
  }
  return listener;
}

void append_bytes(std::string& to, const void* bytes, size_t size) {
  to.append(static_cast<const char*>(bytes), size);
}

/// The payload of protocol.h and, beside it, the descriptors in the order of their numbers.
std::string order_payload(const BoxSpec& spec, entry::Header& header, std::vector<int>& fds) {
  std::string payload;
  const auto add_string = [&](const std::string& text) {
    if (text.find('\0') != std::string::npos) {
      throw UsageError("box_argv", "a box's command and environment cannot hold NUL");
    }
    payload.append(text.c_str(), text.size() + 1);
  };
  for (const std::string& argument : spec.argv) add_string(argument);
  for (const auto& [key, value] : spec.env) add_string(key + "=" + value);
  std::vector<int32_t> numbers;
  const auto give = [&](int fd, int number) {
    fds.push_back(fd);
    numbers.push_back(number);
  };
  if (spec.stdin_fd) give(*spec.stdin_fd, 0);
  if (spec.stdout_fd) give(*spec.stdout_fd, 1);
  if (spec.stderr_fd) give(*spec.stderr_fd, 2);
  for (const auto& [ours, number] : spec.fds) give(ours, number);
  append_bytes(payload, numbers.data(), numbers.size() * sizeof(int32_t));
  const auto rlimits = common_rlimits(spec.limits);
  for (const auto& [resource, value] : rlimits) {
    const entry::Rlimit limit{resource, 0, value};
    append_bytes(payload, &limit, sizeof limit);
  }
  if (fds.size() > entry::kMaxFds || payload.size() > entry::kMaxPayload) {
    throw UsageError("box_argv", "too many descriptors or too long a command for a docker box");
  }
  const auto count = [](size_t n) { return static_cast<uint32_t>(n); };
  header = {entry::kMagic,     count(spec.argv.size()), count(spec.env.size()),
            count(fds.size()), count(rlimits.size()),   count(payload.size())};
  return payload;
}

/// Sends with descriptors beside the first byte; false when the other side is gone.
bool send_with_fds(int socket, std::string_view bytes, const std::vector<int>& fds) {
  PassedFds<entry::kMaxFds + 1> passed;
  bool first = true;
  while (!bytes.empty()) {
    iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (first) passed.attach(message, fds);
    const ssize_t n = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
    first = false;
  }
  return true;
}

bool readable(int fd, double seconds) {
  const double deadline = boot_seconds() + seconds;
  for (;;) {
    const double left = deadline - boot_seconds();
    pollfd poller{fd, POLLIN, 0};
    const int timeout = seconds < 0 ? -1 : static_cast<int>(std::clamp(left, 0.0, 1e6) * 1000);
    const int ready = ::poll(&poller, 1, timeout);
    if (ready > 0) return true;
    if (ready == 0 && left <= 0.001) return false;
    if (ready < 0 && errno != EINTR) throw_errno("poll", "docker box");
  }
}

}  // namespace

void set_box_image(const std::string& image) { chosen_image() = image; }

std::string box_image() {
  const char* named = std::getenv("CBENCH_IMAGE");
  std::string image = chosen_image();
  if (image.empty() && named != nullptr) image = named;
  if (image.empty()) image = "cbench-box";
  if (image.front() == '-') {  // docker would take it for an option
    throw UsageError("box_image", "no docker image can be named " + printable(image, 80) +
                                      "; look at the contract's image and CBENCH_IMAGE");
  }
  return image;
}

std::string box_owner(pid_t pid) {
  std::string stat;
  try {
    stat = read_file("/proc/" + std::to_string(pid) + "/stat", 1 << 16);
  } catch (const Error&) {
    return "";
  }
  // Field 22 is the start time; the name, which may hold anything, ends at the last ')'.
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  std::string start;
  for (int field = 3; field <= 22; ++field) fields >> start;
  std::error_code error;
  const std::string space = std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
  return boot_id() + "/" + space + "/" + std::to_string(pid) + "/" + start;
}

void remove_orphaned_boxes() {
  ProcessOptions list;
  list.inherit_env = true;
  list.argv = {"docker",   "ps",
               "--all",    "--no-trunc",
               "--filter", std::string("label=") + kOwnerLabel,
               "--format", std::string("{{.ID}} {{.Label \"") + kOwnerLabel + "\"}}"};
  const RunResult found = run_process(list, 30);
  const std::string mine = box_owner(::getpid());
  // Only those of this boot and this pid namespace can be judged.
  const std::string here = mine.substr(0, mine.find('/', mine.find('/') + 1) + 1);
  std::istringstream lines(found.out);
  for (std::string id, owner; lines >> id >> owner;) {
    if (!owner.starts_with(here)) continue;
    const pid_t pid = std::atoi(owner.c_str() + here.size());
    if (pid <= 0 || box_owner(pid) == owner) continue;
    ProcessOptions remove;
    remove.inherit_env = true;
    remove.argv = {"docker", "rm", "--force", "--volumes", id};
    run_process(remove, 60);
  }
}

DockerBox::DockerBox(const BoxSpec& spec)
    : name_("cbench-" + random_token()), image_(spec.image.empty() ? box_image() : spec.image) {
  // Gone again as soon as the box is connected: the mount keeps its files, the path is no longer
  // there to be found or to be left behind.
  const TempDir directory("cbench-box");
  const std::string shown = directory.path() + "/box";
  const Fd listener = fill_directory(shown);
  start_client(spec, shown);
  try {
    adopt(accept_entry(listener));
    send_order(spec);
  } catch (...) {
    remove();
    throw;
  }
}

DockerBox::~DockerBox() { kill(); }

void DockerBox::start_client(const BoxSpec& spec, const std::string& directory) {
  errors_ = Fd(::memfd_create("docker-errors", MFD_CLOEXEC));
  if (!errors_.valid()) throw_errno("memfd_create", "docker");
  ProcessOptions options;
  options.argv = run_command(spec, name_, image_, directory);
  options.inherit_env = true;  // DOCKER_HOST and the like are for the client, not the box
  options.stderr_fd = errors_.get();
  client_ = std::make_unique<Process>(options);
}

/// The entry's connection; when the client ends first, it has said why.
Fd DockerBox::accept_entry(const Fd& listener) {
  const double deadline = boot_seconds() + kStartTime;
  while (boot_seconds() < deadline) {
    std::array<pollfd, 2> polls{{{listener.get(), POLLIN, 0}, {client_->pidfd(), POLLIN, 0}}};
    if (::poll(polls.data(), polls.size(), 1000) < 0 && errno != EINTR) throw_errno("poll", "box");
    if (polls[0].revents != 0) {
      Fd connection(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (connection.valid()) return connection;
    } else if (polls[1].revents != 0) {
      fail();
    }
  }
  throw EnvironmentError("box_unavailable", "docker did not start a container within " +
                                                std::to_string(static_cast<int>(kStartTime)) +
                                                " s: is the engine stuck?");
}

/// Who connected is the box's first process: nothing else runs in there yet.
void DockerBox::adopt(Fd connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    throw_errno("getsockopt", "docker box");
  }
  if (peer.pid > 0) init_fd_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
  if (!init_fd_.valid()) {
    throw EnvironmentError(
        "box_unavailable",
        "the docker engine runs in another pid namespace than cbench, so its "
        "boxes can be neither measured nor ended for sure: run cbench beside it");
  }
  init_ = peer.pid;
  connection_ = std::move(connection);
}

void DockerBox::send_order(const BoxSpec& spec) {
  const Fd filter = seccomp_filter();
  std::vector<int> fds = {filter.get()};
  std::vector<int> given;
  entry::Header header{};
  const std::string payload = order_payload(spec, header, given);
  fds.insert(fds.end(), given.begin(), given.end());
  const std::string_view head(reinterpret_cast<const char*>(&header), sizeof header);
  // A box that is already gone is found out by waiting for it.
  if (send_with_fds(connection_.get(), head, fds)) {
    std::string_view rest = payload;
    while (!rest.empty()) {
      const ssize_t n = ::send(connection_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      rest.remove_prefix(static_cast<size_t>(n));
    }
  }
}

/// Turns the client's message into an error that says what to do.
void DockerBox::fail() {
  const std::optional<ExitStatus> status = client_->wait(-1);
  std::string said(4096, '\0');
  const ssize_t n = ::pread(errors_.get(), said.data(), said.size(), 0);
  said.resize(n > 0 ? static_cast<size_t>(n) : 0);
  const auto has = [&](std::string_view words) { return said.find(words) != std::string::npos; };
  const std::string message = printable(said, 600);
  removed_ = !has("already in use");
  if (has("No such image") || has("Unable to find image")) {
    throw EnvironmentError("box_image", "docker has no image " + image_ +
                                            ": pull it, or make one (scripts/box_image.py; "
                                            "docs/boxes.md says what it must hold)");
  }
  if (has("no space left on device")) {
    throw EnvironmentError("disk_full", "no space for a container: " + message +
                                            ": make room in docker's root (docker system prune)");
  }
  if (has("could not select device driver")) {
    throw EnvironmentError("box_unavailable",
                           "docker cannot give a box the GPU: install the NVIDIA "
                           "container toolkit (nvidia-ctk runtime configure)");
  }
  throw EnvironmentError("box_unavailable",
                         "docker did not start a box (" + status->text() + "): " + message);
}

std::optional<ExitStatus> DockerBox::wait(double seconds) {
  if (status_) return status_;
  if (!readable(init_fd_.get(), seconds)) return std::nullopt;
  int32_t said = 0;
  const ssize_t n = ::recv(connection_.get(), &said, sizeof said, MSG_DONTWAIT);
  if (n != sizeof said) {
    status_ = {.exited = false, .code = 0, .signal = SIGKILL};  // the box was ended as a whole
  } else if (WIFSIGNALED(said)) {
    status_ = {.exited = false, .code = 0, .signal = WTERMSIG(said)};
  } else {
    status_ = {.exited = true, .code = WEXITSTATUS(said), .signal = 0};
  }
  return status_;
}

void DockerBox::terminate() {
  ::send(connection_.get(), &entry::kTerminate, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ExitStatus DockerBox::kill() {
  if (init_fd_.valid() && !removed_) {
    // Whichever reaches it first: the signal where we may send one, else the end of the line.
    ::syscall(SYS_pidfd_send_signal, init_fd_.get(), SIGKILL, nullptr, 0);
    ::shutdown(connection_.get(), SHUT_WR);
    wait(kEndTime);
    remove();
  }
  if (!status_) status_ = {.exited = false, .code = 0, .signal = SIGKILL};
  return *status_;
}

/// The client ends when the engine has removed the container; where it does not, by force.
void DockerBox::remove() {
  if (removed_) return;
  removed_ = true;
  if (connection_.valid() && client_->wait(kEndTime)) return;
  client_->signal_group(SIGKILL);
  client_->wait(-1);
  ProcessOptions options;
  options.inherit_env = true;
  options.argv = {"docker", "rm", "--force", "--volumes", name_};
  run_process(options, 60);
  if (init_fd_.valid()) readable(init_fd_.get(), kEndTime);
}

}  // namespace cbench
