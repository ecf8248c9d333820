// The docker kind: a container without network, capabilities or a writable root.
#include <unistd.h>

#include "box/launch.h"
#include "util/error.h"

namespace cbench {

Launch docker_launch(const BoxSpec& spec) {
  if (!spec.fds.empty()) {
    throw UsageError("box_fds",
                     "a docker box cannot be given descriptors; use a socket in a mount");
  }
  Launch launch;
  launch.token = "cbench-" + random_token();
  std::vector<std::string>& args = launch.process.argv;
  const auto add = [&](std::initializer_list<std::string> more) { args.insert(args.end(), more); };
  const std::string size = std::to_string(spec.tmp_bytes);
  add({"docker",
       "run",
       "--rm",
       "--init",
       "--interactive",
       "--name",
       launch.token,
       "--label",
       "cbench.run=" + spec.label,
       "--read-only",
       "--cap-drop",
       "ALL",
       "--security-opt",
       "no-new-privileges",
       "--hostname",
       spec.hostname,
       "--ulimit",
       "core=0",
       "--pull",
       "never",
       "--network",
       spec.network ? "bridge" : "none",
       "--workdir",
       spec.cwd});
  add({"--tmpfs", "/tmp:rw,exec,nosuid,nodev,mode=1777,size=" + size, "--shm-size", size});
  // Files made in a writable mount belong to the caller.
  add({"--user", std::to_string(::geteuid()) + ":" + std::to_string(::getegid())});
  const Limits& limits = spec.limits;
  if (limits.processes != 0) add({"--pids-limit", std::to_string(limits.processes)});
  if (limits.memory != 0) {
    add({"--memory", std::to_string(limits.memory), "--memory-swap",
         std::to_string(limits.memory)});
  }
  const auto ulimit = [&](const char* name, uint64_t value) {
    if (value != 0) add({"--ulimit", std::string(name) + "=" + std::to_string(value)});
  };
  ulimit("as", limits.address_space);
  ulimit("fsize", limits.file_size);
  ulimit("nofile", limits.open_files);
  ulimit("cpu", limits.cpu_seconds);
  if (spec.gpu) add({"--gpus", "all"});
  for (const Mount& mount : spec.mounts) {
    if (mount.host.find(',') != std::string::npos || mount.inside.find(',') != std::string::npos) {
      throw EnvironmentError("box_mount", mount.host + ": docker cannot mount a path with a comma");
    }
    add({"--mount", "type=bind,source=" + mount.host + ",target=" + mount.inside +
                        (mount.writable ? "" : ",readonly")});
  }
  for (const auto& [key, value] : spec.env) add({"--env", key + "=" + value});
  args.push_back(spec.image);
  args.insert(args.end(), spec.argv.begin(), spec.argv.end());
  launch.process.inherit_env = true;  // DOCKER_HOST and the like are for the client, not the box
  launch.encodes_signals = true;
  return launch;
}

void docker_remove(const std::string& name) {
  ProcessOptions options;
  options.inherit_env = true;
  options.argv = {"docker", "rm", "--force", "--volumes", name};
  run_process(options, 60);
}

}  // namespace cbench
