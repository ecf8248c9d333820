// Child processes: start with limits and chosen descriptors, wait with a bound, leave nothing
// behind.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "util/file.h"

namespace cbench {

struct ProcessOptions {
  std::vector<std::string> argv;           ///< argv[0] is looked up in PATH
  std::map<std::string, std::string> env;  ///< the child's whole environment
  bool inherit_env = false;                ///< start from ours, `env` on top
  std::string cwd;                         ///< "" = ours
  std::vector<std::pair<int, int>> fds;    ///< {ours, number in the child}; all others are closed
  std::optional<int> stdin_fd, stdout_fd, stderr_fd;  ///< default: /dev/null
  std::vector<std::pair<int, uint64_t>> rlimits;      ///< {RLIMIT_*, value}
  bool die_with_parent = true;                        ///< SIGKILL when this thread's process ends
};

struct ExitStatus {
  bool exited = false;  ///< ended by exit(code)
  int code = 0;
  int signal = 0;  ///< else ended by this signal
  bool ok() const { return exited && code == 0; }
  std::string text() const;  ///< "exit code 3", "signal 9 (Killed)"
};

/// A child in its own session and process group. The destructor kills the group and reaps.
class Process {
 public:
  explicit Process(
      const ProcessOptions& options);  ///< throws EnvironmentError ("not_found", "spawn")
  ~Process();
  Process(Process&&) noexcept;
  Process& operator=(Process&&) = delete;

  pid_t pid() const { return pid_; }
  /// Waits up to `seconds` (negative: for ever) for the child itself, not for holders of its pipes.
  std::optional<ExitStatus> wait(double seconds);
  /// Signals the whole group; harmless when it is gone.
  void signal_group(int signal);
  /// SIGTERM, `grace` seconds, SIGKILL; reaps. Returns how it ended.
  ExitStatus stop(double grace);
  int pidfd() const { return pidfd_.get(); }

 private:
  pid_t pid_ = -1;
  Fd pidfd_;
  std::optional<ExitStatus> status_;
};

struct RunResult {
  ExitStatus status;
  bool timed_out = false;
  std::string out;  ///< first `max_output` bytes of each stream
  std::string err;
  bool truncated = false;
  double seconds = 0;
};

/// Runs to the end with captured output; kills the group at `timeout` seconds. Output beyond
/// `max_output` bytes per stream is read and dropped.
RunResult run_process(ProcessOptions options, double timeout, size_t max_output = 1u << 20,
                      std::string_view input = {});

/// A pipe with close-on-exec ends: {read, write}.
std::pair<Fd, Fd> make_pipe();

/// Full path of a program in PATH, or "".
std::string find_program(const std::string& name);

}  // namespace cbench
