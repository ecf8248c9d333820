// Inside src/box: a box that is a container of a local docker engine.
//
// A container is the child of the engine, not ours, so nothing can be inherited. Instead its first
// process is a small static program of ours (src/box_entry) that connects to a socket in a mounted
// directory and is given the command, its descriptors and limits there. The connection is the box's
// life line: when it ends, because we say so or because we died, the first process ends, and the
// kernel ends everything else in its pid namespace.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "box/box.h"

namespace cbench {

class DockerBox {
 public:
  /// Throws EnvironmentError: "box_unavailable", "box_image", "box_mount", "disk_full".
  explicit DockerBox(const BoxSpec& spec);
  ~DockerBox();
  DockerBox(const DockerBox&) = delete;
  DockerBox& operator=(const DockerBox&) = delete;

  std::optional<ExitStatus> wait(double seconds);  ///< < 0: for ever
  void terminate();                                ///< SIGTERM for the command and its group
  ExitStatus kill();                               ///< idempotent; nothing is left afterwards
  pid_t init() const { return init_; }             ///< the box's first process, in our namespace
  int pidfd() const { return init_fd_.get(); }     ///< of that process

 private:
  void start_client(const BoxSpec& spec, const std::string& directory);
  Fd accept_entry(const Fd& listener);
  void adopt(Fd connection);
  void send_order(const BoxSpec& spec);
  [[noreturn]] void fail();
  void remove();

  std::string name_, image_;
  Fd errors_;                        ///< what the docker client says
  std::unique_ptr<Process> client_;  ///< `docker run`; ends after the container is removed
  Fd connection_;
  Fd init_fd_;
  pid_t init_ = 0;
  std::optional<ExitStatus> status_;
  bool removed_ = false;
};

/// Who a container belongs to: a process of this machine, told apart from a later one of the same
/// number. "" when there is no such process.
std::string box_owner(pid_t pid);

/// Removes containers whose owner has ended: what a cbench leaves that is killed between the making
/// and the start of a container.
void remove_orphaned_boxes();

/// The static program that a docker box runs first.
std::string_view box_entry_program();

}  // namespace cbench
