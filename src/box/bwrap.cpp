// The bubblewrap kind: every namespace of its own, a read-only system, nothing else visible.
#include <array>
#include <filesystem>

#include <sys/stat.h>
#include <unistd.h>

#include "box/launch.h"
#include "util/error.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;

void add(Args& args, std::initializer_list<std::string> more) { args.insert(args.end(), more); }

/// /usr and the top-level names that point into it, then the few files of /etc that programs need.
void add_system(Args& args) {
  add(args, {"--ro-bind", "/usr", "/usr"});
  for (const char* name : {"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}) {
    std::error_code error;
    const fs::file_status status = fs::symlink_status(name, error);
    if (fs::is_symlink(status)) {
      add(args, {"--symlink", fs::read_symlink(name).string(), name});
    } else if (fs::is_directory(status)) {
      add(args, {"--ro-bind", name, name});
    }
  }
  for (const char* name : {"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
                           "/etc/alternatives", "/etc/localtime", "/etc/nsswitch.conf"}) {
    add(args, {"--ro-bind-try", name, name});
  }
}

/// The one GPU and the driver's common nodes: memory of another GPU would be nobody's to count.
void add_gpu(Args& args, const BoxGpu& gpu) {
  for (const std::string& name : {"nvidia" + std::to_string(gpu.minor), std::string("nvidiactl"),
                                  std::string("nvidia-uvm"), std::string("nvidia-uvm-tools")}) {
    add(args, {"--dev-bind-try", "/dev/" + name, "/dev/" + name});
  }
  add(args, {"--ro-bind-try", "/sys/bus/pci", "/sys/bus/pci"});
  add(args, {"--ro-bind-try", "/sys/devices", "/sys/devices"});
}

/// Gives the child one of our descriptors under a free number; the number as text.
std::string pass(Launch& launch, Fd fd) {
  const int number = next_free_fd(launch.process);
  launch.process.fds.emplace_back(fd.get(), number);
  launch.keep.push_back(std::move(fd));
  return std::to_string(number);
}

void add_files(Args& args, Launch& launch) {
  const std::string id = std::to_string(kBoxUser);
  const std::string passwd = "box:x:" + id + ":" + id + "::/tmp:/bin/sh\n";
  add(args, {"--ro-bind-data", pass(launch, memory_file("passwd", passwd)), "/etc/passwd"});
  add(args,
      {"--ro-bind-data", pass(launch, memory_file("group", "box:x:" + id + ":\n")), "/etc/group"});
  add(args, {"--ro-bind-data", pass(launch, memory_file("hosts", "127.0.0.1 localhost\n")),
             "/etc/hosts"});
}

void add_devices_and_mounts(Args& args, const BoxSpec& spec) {
  const std::string size = std::to_string(spec.tmp_bytes);
  add(args, {"--proc", "/proc", "--dev", "/dev"});
  add(args, {"--size", size, "--perms", "1777", "--tmpfs", "/dev/shm"});
  if (spec.gpu) add_gpu(args, *spec.gpu);
  if (!spec.gpu) add(args, {"--ro-bind-try", "/sys/devices/system", "/sys/devices/system"});
  add(args, {"--size", size, "--perms", "1777", "--tmpfs", "/tmp"});
  for (const Mount& mount : spec.mounts) {
    add(args, {mount.writable ? "--bind" : "--ro-bind", mount.host, mount.inside});
  }
  // bubblewrap's root and /dev are writable memory; close them, or they are room to fill.
  add(args, {"--remount-ro", "/dev", "--remount-ro", "/"});
}

}  // namespace

Launch bwrap_launch(const BoxSpec& spec) {
  Launch launch;
  ProcessOptions& process = launch.process;
  process.fds = spec.fds;
  Args& args = process.argv;
  const std::string id = std::to_string(kBoxUser);
  if (spec.own_user && ::geteuid() == 0) {
    args = {"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--pdeathsig", "KILL"};
  }
  add(args, {"bwrap", "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts",
             "--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL"});
  if (!spec.network) args.push_back("--unshare-net");
  add(args, {"--uid", id, "--gid", id, "--hostname", spec.hostname});
  add_system(args);
  add_files(args, launch);
  add_devices_and_mounts(args, spec);
  for (const auto& [key, value] : spec.env) {
    // A loader variable is meant for the command, not for bwrap itself.
    if (key.starts_with("LD_")) {
      add(args, {"--setenv", key, value});
    } else {
      process.env[key] = value;
    }
  }
  auto [info_read, info_write] = make_pipe();
  auto [go_read, go_write] = go_channel();
  add(args, {"--info-fd", pass(launch, std::move(info_write))});
  add(args, {"--block-fd", pass(launch, std::move(go_read))});
  add(args, {"--seccomp", pass(launch, seccomp_filter())});
  add(args, {"--chdir", spec.cwd, "--"});
  if (spec.limits.processes != 0) {
    // Set inside the new user namespace, RLIMIT_NPROC counts this box only (Linux 5.14 and later).
    const std::string count = std::to_string(spec.limits.processes);
    add(args, {"/usr/bin/prlimit", "--nproc=" + count + ":" + count, "--"});
  }
  args.insert(args.end(), spec.argv.begin(), spec.argv.end());
  process.rlimits = common_rlimits(spec.limits);
  launch.info = std::move(info_read);
  launch.go = std::move(go_write);
  launch.encodes_signals = true;
  return launch;
}

}  // namespace cbench
