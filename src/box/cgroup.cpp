// Control groups through their file systems: kernel Documentation/admin-guide/cgroup-v2.rst, -v1/.
#include "box/cgroup.h"

#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "box/launch.h"

namespace cbench {
namespace {

bool write_value(const std::string& path, const std::string& value) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool ok = ::write(fd, value.data(), value.size()) == static_cast<ssize_t>(value.size());
  ::close(fd);
  return ok;
}

std::vector<pid_t> members(const std::string& directory) {
  std::ifstream in(directory + "/cgroup.procs");
  std::vector<pid_t> pids;
  for (pid_t pid; in >> pid;) pids.push_back(pid);
  return pids;
}

/// Our own place in a hierarchy, from /proc/self/cgroup; `controller` "" is version 2.
std::string own_path(const std::string& controller) {
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::stringstream names(line.substr(first + 1, second - first - 1));
    if (controller.empty() && second == first + 1) return line.substr(second + 1);
    for (std::string name; std::getline(names, name, ',');) {
      if (!controller.empty() && name == controller) return line.substr(second + 1);
    }
  }
  return "";
}

/// Where a hierarchy is mounted, from /proc/self/mounts.
std::string mount_point(const std::string& type, const std::string& option) {
  std::ifstream in("/proc/self/mounts");
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string device, where, kind, options;
    fields >> device >> where >> kind >> options;
    if (kind != type) continue;
    if (option.empty() || ("," + options + ",").find("," + option + ",") != std::string::npos) {
      return where;
    }
  }
  return "";
}

/// mkdir of a child group; "" when it is not ours to make.
std::string make_group(const std::string& base, const std::string& own, const std::string& name) {
  if (base.empty() || own.empty()) return "";
  const std::string path = base + (own == "/" ? "" : own) + "/" + name;
  return ::mkdir(path.c_str(), 0755) == 0 ? path : "";
}

bool set_v2_limits(const std::string& directory, const Limits& limits) {
  bool ok = true;
  if (limits.memory != 0) {
    ok = write_value(directory + "/memory.max", std::to_string(limits.memory)) && ok;
    write_value(directory + "/memory.swap.max", "0");
  }
  if (limits.processes != 0) {
    ok = write_value(directory + "/pids.max", std::to_string(limits.processes)) && ok;
  }
  return ok;
}

}  // namespace

std::unique_ptr<Cgroup> Cgroup::create(const Limits& limits) {
  if (limits.memory == 0 && limits.processes == 0) return nullptr;
  std::unique_ptr<Cgroup> group(new Cgroup);
  const std::string name = "cbench-" + random_token().substr(0, 16);
  const std::string unified = mount_point("cgroup2", "");
  const std::string own = own_path("");
  write_value(unified + (own == "/" ? "" : own) + "/cgroup.subtree_control", "+memory +pids");
  const std::string v2 = make_group(unified, own, name);
  if (!v2.empty() && set_v2_limits(v2, limits)) {
    group->directories_ = {v2};
    return group;
  }
  if (!v2.empty()) ::rmdir(v2.c_str());
  const std::string pids = make_group(mount_point("cgroup", "pids"), own_path("pids"), name);
  const std::string memory = make_group(mount_point("cgroup", "memory"), own_path("memory"), name);
  for (const std::string& directory : {pids, memory}) {
    if (!directory.empty()) group->directories_.push_back(directory);
  }
  bool ok = !pids.empty() && !memory.empty();
  if (ok && limits.processes != 0) {
    ok = write_value(pids + "/pids.max", std::to_string(limits.processes));
  }
  if (ok && limits.memory != 0) {
    ok = write_value(memory + "/memory.limit_in_bytes", std::to_string(limits.memory));
  }
  return ok ? std::move(group) : nullptr;
}

Cgroup::~Cgroup() {
  kill();
  for (const std::string& directory : directories_) ::rmdir(directory.c_str());
}

bool Cgroup::add(pid_t pid) {
  bool ok = true;
  for (const std::string& directory : directories_) {
    ok = write_value(directory + "/cgroup.procs", std::to_string(pid)) && ok;
  }
  return ok;
}

void Cgroup::kill() {
  for (const std::string& directory : directories_) {
    write_value(directory + "/cgroup.kill", "1");  // version 2, Linux 5.14 and later
    for (int pass = 0; pass < 1000; ++pass) {
      const std::vector<pid_t> pids = members(directory);
      if (pids.empty()) break;
      for (const pid_t pid : pids) ::kill(pid, SIGKILL);
      const timespec pause{0, 1'000'000};
      ::nanosleep(&pause, nullptr);
    }
  }
}

}  // namespace cbench
