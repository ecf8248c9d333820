// A cgroup for one box: bounds of memory and process count, and a kill that misses nobody.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

#include "box/box.h"

namespace cbench {

class Cgroup {
 public:
  /// A new group below our own, or null where none can be made (not delegated to us). Version 2, or
  /// the pids and memory hierarchies of version 1.
  static std::unique_ptr<Cgroup> create(const Limits& limits);
  ~Cgroup();  ///< kills and removes
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;

  bool add(pid_t pid);  ///< moves a process; its later children follow
  void kill();          ///< SIGKILL until the group is empty

 private:
  Cgroup() = default;
  std::vector<std::string> directories_;
};

}  // namespace cbench
