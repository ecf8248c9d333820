// Running one command in a box to its end with captured output; the availability probe.
#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>

#include <poll.h>

#include "box/box.h"
#include "box/docker.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

/// One captured stream: the first `limit` bytes are kept, the rest is read and dropped.
struct Stream {
  Fd fd;
  std::string* to = nullptr;
  size_t limit = 0;
  bool truncated = false;

  void drain() {
    std::array<char, 65536> buffer;
    const size_t n = read_some(fd, buffer.data(), buffer.size(), "box output");
    if (n == 0) return fd.reset();
    const size_t room = limit - std::min(limit, to->size());
    to->append(buffer.data(), std::min(n, room));
    truncated |= n > room;
  }
};

/// Reads what arrives on the streams, or notices the end of the process, for up to `seconds`.
void poll_once(std::array<Stream, 2>& streams, int pidfd, double seconds) {
  std::array<pollfd, 3> polls{
      {{streams[0].fd.get(), POLLIN, 0}, {streams[1].fd.get(), POLLIN, 0}, {pidfd, POLLIN, 0}}};
  const int timeout = static_cast<int>(std::clamp(seconds * 1000 + 1, 0.0, 60000.0));
  if (::poll(polls.data(), polls.size(), timeout) < 0 && errno != EINTR) throw_errno("poll", "box");
  for (size_t i = 0; i < streams.size(); ++i) {
    if (polls[i].revents != 0) streams[i].drain();
  }
}

std::string unavailable_hint(BoxKind kind) {
  if (kind == BoxKind::kDocker) {
    return "install docker, start its daemon, and give this user access to it";
  }
  return "install bubblewrap (apt install bubblewrap) and allow user namespaces "
         "(user.max_user_namespaces > 0; where AppArmor restricts them, "
         "kernel.apparmor_restrict_unprivileged_userns = 0; in a container, "
         "--security-opt seccomp=unconfined)";
}

/// "" if boxes of this kind work here, else why not.
std::string probe(BoxKind kind) {
  if (kind == BoxKind::kDirect) return "";
  ProcessOptions options;
  options.inherit_env = true;
  if (kind == BoxKind::kDocker) {
    options.argv = {"docker", "version", "--format", "{{.Server.Version}}"};
  } else {
    options.argv = {"bwrap",
                    "--unshare-user",
                    "--unshare-ipc",
                    "--unshare-pid",
                    "--unshare-uts",
                    "--unshare-net",
                    "--ro-bind",
                    "/",
                    "/",
                    "--proc",
                    "/proc",
                    "--dev",
                    "/dev",
                    "/usr/bin/true"};
  }
  if (find_program(options.argv[0]).empty()) return options.argv[0] + " is not installed";
  const RunResult result = run_process(options, 20);
  if (result.status.ok() && !result.timed_out) {
    if (kind == BoxKind::kDocker) remove_orphaned_boxes();
    return "";
  }
  if (result.timed_out) return options.argv[0] + " failed: no answer in 20 s";
  const size_t end = result.err.find_last_not_of(" \n.");  // more of the sentence follows
  return options.argv[0] + " failed: " + printable(result.err.substr(0, end + 1));
}

}  // namespace

void require_box(BoxKind kind) {
  static std::mutex mutex;
  static std::map<BoxKind, std::string> known;
  const std::scoped_lock lock(mutex);
  if (!known.contains(kind)) known[kind] = probe(kind);
  const std::string& problem = known[kind];
  if (problem.empty()) return;
  throw EnvironmentError("box_unavailable", "no " + std::string(box_kind_name(kind)) +
                                                " box can be started here: " + problem + "; " +
                                                unavailable_hint(kind));
}

RunResult run_in_box(BoxKind kind, BoxSpec spec, double timeout, size_t max_output) {
  RunResult result;
  auto [out_read, out_write] = make_pipe();
  auto [err_read, err_write] = make_pipe();
  spec.stdout_fd = out_write.get();
  spec.stderr_fd = err_write.get();
  const double started = boot_seconds();
  Box box(kind, spec);
  out_write.reset();
  err_write.reset();
  std::array<Stream, 2> streams{{{std::move(out_read), &result.out, max_output},
                                 {std::move(err_read), &result.err, max_output}}};
  while (!box.wait(0)) {
    const double left = timeout - (boot_seconds() - started);
    result.timed_out = left <= 0;
    if (result.timed_out) break;
    poll_once(streams, box.pidfd(), left);
  }
  result.status = box.kill();
  result.seconds = boot_seconds() - started;
  // Nothing inside is alive to write more: what is left in the pipes is finite.
  const double deadline = boot_seconds() + 1.0;
  while ((streams[0].fd.valid() || streams[1].fd.valid()) && boot_seconds() < deadline) {
    poll_once(streams, -1, deadline - boot_seconds());
  }
  result.truncated = streams[0].truncated || streams[1].truncated;
  return result;
}

}  // namespace cbench
