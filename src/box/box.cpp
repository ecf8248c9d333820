// Starting, watching and ending a box of any kind.
#include "box/box.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "box/cgroup.h"
#include "box/docker.h"
#include "box/launch.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

/// The pid that bwrap reports as {"child-pid": N, ...}; 0 if it ended without saying.
pid_t read_child_pid(const Fd& info) {
  std::string text;
  std::array<char, 512> buffer;
  while (text.find('}') == std::string::npos && text.size() < 4096) {
    const size_t n = read_some(info, buffer.data(), buffer.size(), "bwrap");
    if (n == 0) break;
    text.append(buffer.data(), n);
  }
  constexpr std::string_view kKey = "\"child-pid\":";
  size_t at = text.find(kKey);
  if (at == std::string::npos) return 0;
  at = text.find_first_of("0123456789", at + kKey.size());
  pid_t pid = 0;
  if (at != std::string::npos) std::from_chars(text.data() + at, text.data() + text.size(), pid);
  return pid;
}

void check_mounts(const BoxSpec& spec) {
  for (const Mount& mount : spec.mounts) {
    struct stat status {};
    if (::stat(mount.host.c_str(), &status) != 0) {
      throw EnvironmentError("box_mount", errno_message("mount", mount.host) + " (for " +
                                              mount.inside + " in the box)");
    }
    if (!mount.inside.starts_with('/') || mount.inside.find("/../") != std::string::npos) {
      throw UsageError("box_mount", mount.inside + ": a mount needs an absolute path in the box");
    }
  }
}

Launch make_launch(BoxKind kind, const BoxSpec& spec) {
  switch (kind) {
    case BoxKind::kBwrap:
      return bwrap_launch(spec);
    case BoxKind::kDirect:
      return direct_launch(spec);
    case BoxKind::kDocker:
      break;
  }
  throw UsageError("box_kind", "not a kind of box that is our own child");
}

/// RLIMIT_NPROC does not bind processes that are root outside the box.
bool root_outside(const BoxSpec& spec) { return ::geteuid() == 0 && !spec.own_user; }

LimitReport report_limits(BoxKind kind, const BoxSpec& spec, bool cgroup) {
  if (kind == BoxKind::kDocker) return {true, true, "docker bounds memory and processes"};
  if (cgroup) return {true, true, "a cgroup bounds memory and processes of the box as a whole"};
  const bool processes = kind == BoxKind::kBwrap && !root_outside(spec);
  return {false, processes,
          std::string("no writable cgroup: memory is bounded per process (address space), ") +
              (processes ? "processes by RLIMIT_NPROC" : "the number of processes is not bounded")};
}

void wait_gone(int pidfd) {
  pollfd poller{pidfd, POLLIN, 0};
  while (::poll(&poller, 1, -1) < 0 && errno == EINTR) {
  }
}

}  // namespace

std::string_view box_kind_name(BoxKind kind) {
  switch (kind) {
    case BoxKind::kBwrap:
      return "bwrap";
    case BoxKind::kDirect:
      return "direct";
    case BoxKind::kDocker:
      return "docker";
  }
  return "?";
}

BoxKind parse_box_kind(std::string_view name) {
  for (const BoxKind kind : {BoxKind::kBwrap, BoxKind::kDirect, BoxKind::kDocker}) {
    if (name == box_kind_name(kind)) return kind;
  }
  throw UsageError("box_kind", "unknown box '" + printable(name) + "': bwrap, docker or direct");
}

int next_free_fd(const ProcessOptions& process) {
  int number = 3;
  for (const auto& [ours, theirs] : process.fds) number = std::max(number, theirs + 1);
  return number;
}

std::vector<std::pair<int, uint64_t>> common_rlimits(const Limits& limits) {
  std::vector<std::pair<int, uint64_t>> out = {{RLIMIT_CORE, 0}};
  const auto bound = [&](int resource, uint64_t value) {
    if (value != 0) out.emplace_back(resource, value);
  };
  bound(RLIMIT_AS, limits.address_space);
  bound(RLIMIT_FSIZE, limits.file_size);
  bound(RLIMIT_NOFILE, limits.open_files);
  bound(RLIMIT_CPU, limits.cpu_seconds);
  return out;
}

Fd memory_file(std::string_view name, std::string_view bytes) {
  Fd file(::memfd_create(std::string(name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) throw_errno("memfd_create", name);
  write_all(file, bytes, name);
  if (::lseek(file.get(), 0, SEEK_SET) != 0) throw_errno("lseek", name);
  ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
  return file;
}

std::string random_token() {
  std::array<unsigned char, 16> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw_errno("getrandom", "");
  }
  std::string out;
  for (const unsigned char byte : bytes) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

std::pair<Fd, Fd> go_channel() {
  std::array<int, 2> ends;
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw_errno("socketpair", "box");
  }
  return {Fd(ends[0]), Fd(ends[1])};
}

struct Box::Impl {
  BoxKind kind;
  std::string token;
  bool encodes_signals = false;
  LimitReport limits;
  std::unique_ptr<Cgroup> cgroup;
  std::unique_ptr<DockerBox> docker;  // or the rest below
  std::unique_ptr<Process> process;
  pid_t inner_pid = 0;
  Fd inner;  // pidfd of the first process inside: when it has ended, its pid namespace is empty
  bool killed = false;

  void start(const BoxSpec& spec);
  ExitStatus translate(ExitStatus status) const;
  ExitStatus kill();
};

void Box::Impl::start(const BoxSpec& spec) {
  if (kind == BoxKind::kDocker) {
    docker = std::make_unique<DockerBox>(spec);
    limits = report_limits(kind, spec, true);
    return;
  }
  Launch launch = make_launch(kind, spec);
  token = launch.token;
  encodes_signals = launch.encodes_signals;
  cgroup = Cgroup::create(spec.limits);
  if (cgroup == nullptr && spec.limits.memory != 0 && spec.limits.address_space == 0 && !spec.gpu) {
    launch.process.rlimits.emplace_back(RLIMIT_AS, spec.limits.memory);
  }
  launch.process.stdin_fd = spec.stdin_fd;
  launch.process.stdout_fd = spec.stdout_fd;
  launch.process.stderr_fd = spec.stderr_fd;
  process = std::make_unique<Process>(launch.process);
  launch.keep.clear();
  if (launch.info.valid()) inner_pid = read_child_pid(launch.info);
  if (inner_pid > 0) inner = Fd(static_cast<int>(::syscall(SYS_pidfd_open, inner_pid, 0)));
  if (cgroup != nullptr) {
    const pid_t first = inner_pid > 0 ? inner_pid : process->pid();
    if (!cgroup->add(first)) cgroup.reset();
  }
  limits = report_limits(kind, spec, cgroup != nullptr);
  // A command that is already gone leaves a broken connection: not our death.
  if (launch.go.valid()) ::send(launch.go.get(), "\n", 1, MSG_NOSIGNAL);
}

ExitStatus Box::Impl::translate(ExitStatus status) const {
  if (encodes_signals && status.exited && status.code > 128 && status.code <= 128 + 64) {
    return {.exited = false, .code = 0, .signal = status.code - 128};
  }
  return status;
}

ExitStatus Box::Impl::kill() {
  if (docker != nullptr) return docker->kill();
  if (!killed) {
    killed = true;
    if (inner.valid()) ::syscall(SYS_pidfd_send_signal, inner.get(), SIGKILL, nullptr, 0);
    // bwrap passes on the end of the first process, so that the status tells how it ended.
    if (!inner.valid() || !process->wait(1.0)) process->signal_group(SIGKILL);
    process->wait(-1);
    process->signal_group(SIGKILL);
    if (inner.valid()) wait_gone(inner.get());
    if (kind == BoxKind::kDirect) sweep_token(token);
    if (cgroup != nullptr) cgroup->kill();
    cgroup.reset();
  }
  return translate(*process->wait(-1));
}

Box::Box(BoxKind kind, const BoxSpec& spec) : impl_(std::make_unique<Impl>()) {
  if (spec.argv.empty()) throw UsageError("box_argv", "a box needs a command");
  require_box(kind);
  check_mounts(spec);
  impl_->kind = kind;
  BoxSpec complete = spec;
  complete.env.emplace("PATH", "/usr/local/bin:/usr/bin:/bin");
  // By name, so that what is first outside is first inside on a machine with several.
  if (spec.gpu) complete.env["CUDA_VISIBLE_DEVICES"] = spec.gpu->uuid;
  impl_->start(complete);
}

Box::~Box() {
  if (impl_ != nullptr && (impl_->process != nullptr || impl_->docker != nullptr)) impl_->kill();
}

Box::Box(Box&&) noexcept = default;

std::optional<ExitStatus> Box::wait(double seconds) {
  if (impl_->docker != nullptr) return impl_->docker->wait(seconds);
  const std::optional<ExitStatus> status = impl_->process->wait(seconds);
  if (!status) return std::nullopt;
  return impl_->translate(*status);
}

ExitStatus Box::kill() { return impl_->kill(); }

ExitStatus Box::stop(double grace) {
  if (impl_->docker != nullptr) {
    impl_->docker->terminate();
    impl_->docker->wait(grace);
    return kill();
  }
  if (impl_->kind == BoxKind::kBwrap && impl_->inner_pid > 0) {
    // bwrap itself would die of the signal; its first process forwards nothing, so tell all inside.
    const std::string children = "/proc/" + std::to_string(impl_->inner_pid) + "/task/" +
                                 std::to_string(impl_->inner_pid) + "/children";
    const Fd file(::open(children.c_str(), O_RDONLY | O_CLOEXEC));
    std::array<char, 4096> buffer;
    const size_t n = file.valid() ? read_some(file, buffer.data(), buffer.size(), "children") : 0;
    const char* end = buffer.data() + n;
    for (const char* at = buffer.data(); at < end;) {
      pid_t pid = 0;
      const auto result = std::from_chars(at, end, pid);
      if (result.ec == std::errc() && pid > 1) ::kill(pid, SIGTERM);
      at = result.ptr + 1;
    }
  } else {
    impl_->process->signal_group(SIGTERM);
  }
  impl_->process->wait(grace);
  return kill();
}

pid_t Box::pid() const {
  return impl_->docker != nullptr ? impl_->docker->init() : impl_->process->pid();
}
pid_t Box::inner() const { return impl_->inner_pid > 0 ? impl_->inner_pid : pid(); }
int Box::pidfd() const {
  return impl_->docker != nullptr ? impl_->docker->pidfd() : impl_->process->pidfd();
}
const LimitReport& Box::limits() const { return impl_->limits; }

}  // namespace cbench
