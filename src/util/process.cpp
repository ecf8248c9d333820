#include "util/process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"

extern char** environ;

namespace cbench {
namespace {

/// Everything the child needs between fork and exec, prepared before fork: no allocation after it.
struct Prepared {
  std::string program;
  std::vector<char*> argv;
  std::vector<std::string> env_storage;
  std::vector<char*> env;
  std::vector<std::pair<int, int>> fds;  // {ours, child's}
};

std::vector<std::string> merged_env(const ProcessOptions& options) {
  std::map<std::string, std::string> merged;
  if (options.inherit_env) {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      const size_t equals = text.find('=');
      if (equals != std::string::npos) merged[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  for (const auto& [key, value] : options.env) merged[key] = value;
  std::vector<std::string> out;
  for (const auto& [key, value] : merged) out.push_back(key + "=" + value);
  return out;
}

Prepared prepare(const ProcessOptions& options, int null_fd) {
  if (options.argv.empty()) throw std::logic_error("Process: empty argv");
  Prepared p;
  p.program = find_program(options.argv[0]);
  if (p.program.empty()) {
    throw EnvironmentError("not_found", options.argv[0] + ": program not found in PATH");
  }
  for (const std::string& arg : options.argv) p.argv.push_back(const_cast<char*>(arg.c_str()));
  p.argv.push_back(nullptr);
  p.env_storage = merged_env(options);
  for (std::string& entry : p.env_storage) p.env.push_back(entry.data());
  p.env.push_back(nullptr);
  p.fds = {{options.stdin_fd.value_or(null_fd), 0},
           {options.stdout_fd.value_or(null_fd), 1},
           {options.stderr_fd.value_or(null_fd), 2}};
  p.fds.insert(p.fds.end(), options.fds.begin(), options.fds.end());
  return p;
}

[[noreturn]] void child_fail(int report_fd) {
  const int code = errno;
  [[maybe_unused]] const ssize_t n = ::write(report_fd, &code, sizeof code);
  ::_exit(127);
}

/// Moves descriptors to their final numbers: first all out of the way, then into place.
void place_fds(std::vector<std::pair<int, int>>& fds, int& report_fd) {
  int highest = 2;
  for (const auto& [ours, theirs] : fds) highest = std::max(highest, theirs);
  report_fd = ::fcntl(report_fd, F_DUPFD_CLOEXEC, highest + 1);
  for (auto& [ours, theirs] : fds) {
    ours = ::fcntl(ours, F_DUPFD_CLOEXEC, highest + 1);
    if (ours < 0) child_fail(report_fd);
  }
  for (const auto& [ours, theirs] : fds) {
    if (::dup2(ours, theirs) < 0) child_fail(report_fd);
  }
}

[[noreturn]] void run_child(Prepared& p, const ProcessOptions& options, pid_t parent,
                            int report_fd) {
  ::setsid();
  if (options.die_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGTERM, SIG_DFL);
  ::signal(SIGHUP, SIG_DFL);
  place_fds(p.fds, report_fd);
  int highest = 2;
  for (const auto& [ours, theirs] : p.fds) highest = std::max(highest, theirs);
  // Everything above the chosen descriptors closes at exec; those between 3 and `highest` that were
  // not chosen close now.
  for (int fd = 3; fd <= highest; ++fd) {
    const bool chosen = std::any_of(p.fds.begin(), p.fds.end(),
                                    [&](const auto& pair) { return pair.second == fd; });
    if (!chosen) ::close(fd);
  }
  ::syscall(SYS_close_range, highest + 1, ~0U, 4U /* CLOSE_RANGE_CLOEXEC */);
  for (const auto& [resource, value] : options.rlimits) {
    const rlimit limit{value, value};
    ::setrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
  }
  if (!options.cwd.empty() && ::chdir(options.cwd.c_str()) != 0) child_fail(report_fd);
  ::execve(p.program.c_str(), p.argv.data(), p.env.data());
  child_fail(report_fd);
}

ExitStatus decode(const siginfo_t& info) {
  ExitStatus status;
  status.exited = info.si_code == CLD_EXITED;
  (status.exited ? status.code : status.signal) = info.si_status;
  return status;
}

}  // namespace

std::string ExitStatus::text() const {
  if (exited) return "exit code " + std::to_string(code);
  const char* name = ::strsignal(signal);
  return "signal " + std::to_string(signal) + " (" + (name != nullptr ? name : "?") + ")";
}

std::pair<Fd, Fd> make_pipe() {
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno("pipe", "");
  return {Fd(ends[0]), Fd(ends[1])};
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return ::access(name.c_str(), X_OK) == 0 ? name : "";
  const char* raw = std::getenv("PATH");
  std::string_view path = raw != nullptr ? raw : "/usr/bin:/bin";
  while (true) {
    const size_t colon = path.find(':');
    const std::string candidate = std::string(path.substr(0, colon)) + "/" + name;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    if (colon == std::string_view::npos) return "";
    path.remove_prefix(colon + 1);
  }
}

Process::Process(const ProcessOptions& options) {
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  Prepared prepared = prepare(options, null.get());
  auto [report_read, report_write] = make_pipe();
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw_errno("fork", options.argv[0]);
  if (pid_ == 0) run_child(prepared, options, parent, report_write.get());
  report_write.reset();
  int code = 0;
  const size_t n = read_some(report_read, &code, sizeof code, options.argv[0]);
  pidfd_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (n == sizeof code) {
    wait(-1);
    errno = code;
    throw EnvironmentError("spawn", errno_message("exec", options.argv[0]));
  }
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      status_(std::exchange(other.status_, std::nullopt)) {}

Process::~Process() {
  if (pid_ <= 0) return;
  signal_group(SIGKILL);
  if (!status_) wait(-1);
}

std::optional<ExitStatus> Process::wait(double seconds) {
  if (status_) return status_;
  const double deadline = boot_seconds() + seconds;
  while (true) {
    pollfd poller{pidfd_.get(), POLLIN, 0};
    int timeout = -1;
    if (seconds >= 0) {
      timeout = static_cast<int>(std::max(0.0, (deadline - boot_seconds()) * 1000) + 0.999);
    }
    const int ready = ::poll(&poller, 1, timeout);
    if (ready < 0 && errno != EINTR) throw_errno("poll", "child");
    if (ready > 0) {
      siginfo_t info{};
      if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) != 0)
        throw_errno("wait", "child");
      status_ = decode(info);
      return status_;
    }
    if (ready == 0 && seconds >= 0 && boot_seconds() >= deadline) return std::nullopt;
  }
}

void Process::signal_group(int signal) {
  if (pid_ > 0) ::kill(-pid_, signal);
}

ExitStatus Process::stop(double grace) {
  signal_group(SIGTERM);
  if (!wait(grace)) signal_group(SIGKILL);
  const ExitStatus status = *wait(-1);
  signal_group(SIGKILL);
  return status;
}

RunResult run_process(ProcessOptions options, double timeout, size_t max_output,
                      std::string_view input) {
  auto [out_read, out_write] = make_pipe();
  auto [err_read, err_write] = make_pipe();
  std::pair<Fd, Fd> in = make_pipe();
  options.stdout_fd = out_write.get();
  options.stderr_fd = err_write.get();
  options.stdin_fd = in.first.get();
  const double started = boot_seconds();
  Process process(options);
  out_write.reset();
  err_write.reset();
  in.first.reset();
  ::fcntl(in.second.get(), F_SETFL, O_NONBLOCK);

  RunResult result;
  std::optional<ExitStatus> status;
  std::array<char, 65536> buffer;
  const auto drain = [&](Fd& fd, std::string& to) {
    const size_t n = read_some(fd, buffer.data(), buffer.size(), "child output");
    if (n == 0) return fd.reset();
    const size_t room = max_output - std::min(max_output, to.size());
    to.append(buffer.data(), std::min(n, room));
    result.truncated |= n > room;
  };
  double drain_deadline = -1;  // after the child itself ended: a grace for what is in the pipes
  while (true) {
    const double now = boot_seconds();
    if (!status && now - started >= timeout) {
      result.timed_out = true;
      process.signal_group(SIGKILL);
      status = process.wait(-1);
      drain_deadline = now + 0.2;
    }
    const bool open = out_read.valid() || err_read.valid();
    if (status && (!open || now >= drain_deadline)) break;
    std::array<pollfd, 4> polls{{{out_read.get(), POLLIN, 0},
                                 {err_read.get(), POLLIN, 0},
                                 {status ? -1 : process.pidfd(), POLLIN, 0},
                                 {input.empty() ? -1 : in.second.get(), POLLOUT, 0}}};
    if (input.empty()) in.second.reset();
    const double until = status ? drain_deadline : started + timeout;
    const int wait_ms = static_cast<int>(std::clamp((until - now) * 1000 + 1, 0.0, 60000.0));
    if (::poll(polls.data(), polls.size(), wait_ms) < 0 && errno != EINTR)
      throw_errno("poll", "child");
    if (polls[0].revents != 0) drain(out_read, result.out);
    if (polls[1].revents != 0) drain(err_read, result.err);
    if (polls[3].revents != 0) {
      ::signal(SIGPIPE, SIG_IGN);
      const ssize_t n = ::write(in.second.get(), input.data(), input.size());
      if (n > 0) input.remove_prefix(static_cast<size_t>(n));
      if (n < 0 && errno != EAGAIN && errno != EINTR) input = {};
    }
    if (polls[2].revents != 0) {
      status = process.wait(-1);
      drain_deadline = boot_seconds() + 0.2;
    }
  }
  result.status = *status;
  result.seconds = boot_seconds() - started;
  return result;
}

}  // namespace cbench
