// The direct kind: a plain child, no isolation. Clean-up finds daemons by a mark in their
// environment (and by cgroup where there is one); a program that sets out to hide can.
// docs/boxes.md.
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "box/launch.h"

namespace cbench {
namespace {

/// Processes whose environment holds "CBENCH_BOX=<token>", zombies not counted (no environment).
std::vector<pid_t> marked(const std::string& token) {
  const std::string mark = std::string(kTokenVariable) + "=" + token;
  std::vector<pid_t> found;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return found;
  while (const dirent* entry = ::readdir(proc)) {
    pid_t pid = 0;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, pid).ptr != end) continue;
    std::ifstream in("/proc/" + std::string(entry->d_name) + "/environ", std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (text.find(mark) != std::string::npos) found.push_back(pid);
  }
  ::closedir(proc);
  return found;
}

}  // namespace

Launch direct_launch(const BoxSpec& spec) {
  // Orphans of the box come to us, so that they can be reaped.
  static std::once_flag once;
  std::call_once(once, [] { ::prctl(PR_SET_CHILD_SUBREAPER, 1); });
  Launch launch;
  launch.token = random_token();
  ProcessOptions& process = launch.process;
  process.env = spec.env;
  process.env[kTokenVariable] = launch.token;
  process.cwd = spec.cwd;
  process.fds = spec.fds;
  auto [go_read, go_write] = go_channel();
  const std::string number = std::to_string(next_free_fd(process));
  process.fds.emplace_back(go_read.get(), next_free_fd(process));
  launch.keep.push_back(std::move(go_read));
  launch.go = std::move(go_write);
  process.argv = {"/bin/bash", "-c",
                  "read -r -u " + number + "; exec " + number + "<&-; exec \"$@\"", "box"};
  process.argv.insert(process.argv.end(), spec.argv.begin(), spec.argv.end());
  process.rlimits = common_rlimits(spec.limits);
  return launch;
}

void sweep_token(const std::string& token) {
  for (int pass = 0; pass < 1000; ++pass) {
    const std::vector<pid_t> pids = marked(token);
    if (pids.empty()) return;
    for (const pid_t pid : pids) ::kill(pid, SIGKILL);
    const timespec pause{0, 1'000'000};
    ::nanosleep(&pause, nullptr);
    for (const pid_t pid : pids) ::waitpid(pid, nullptr, WNOHANG);
  }
}

}  // namespace cbench
