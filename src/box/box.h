// Boxes: the sandboxes in which everything we do not trust runs (agent, engine, generated
// programs).
//
// A box has no network, sees only what is mounted into it, and ends as a whole: when kill()
// returns, nothing that ever ran inside is alive. docs/boxes.md states what each kind guarantees.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "util/process.h"

namespace cbench {

enum class BoxKind {
  kBwrap,   ///< bubblewrap: user namespaces, no root needed
  kDirect,  ///< no isolation at all; only by a person's explicit choice
  kDocker,  ///< a docker container
};

/// "bwrap", "direct", "docker". parse_box_kind throws UsageError ("box_kind").
std::string_view box_kind_name(BoxKind kind);
BoxKind parse_box_kind(std::string_view name);

struct Mount {
  std::string host;    ///< an existing path outside
  std::string inside;  ///< absolute path in the box
  bool writable = false;
};

/// 0 = no limit of our own.
struct Limits {
  uint64_t memory = 0;         ///< resident bytes of the whole box (cgroup); see LimitReport
  uint64_t address_space = 0;  ///< bytes of virtual memory per process (not for CUDA programs)
  uint64_t processes = 0;      ///< processes and threads in the box
  uint64_t file_size = 0;      ///< bytes per file
  uint64_t open_files = 0;     ///< descriptors per process
  uint64_t cpu_seconds = 0;    ///< processor time per process
};

/// One NVIDIA GPU of the machine.
struct BoxGpu {
  std::string uuid;  ///< "GPU-..."
  int minor = 0;     ///< /dev/nvidia<minor>
};

struct BoxSpec {
  std::vector<std::string> argv;  ///< argv[0] is looked up in the box's PATH unless absolute
  std::map<std::string, std::string> env;  ///< the whole environment (PATH has a default)
  std::vector<Mount> mounts;               ///< in this order, on top of the system directories
  std::string cwd = "/tmp";                ///< a path inside
  std::optional<BoxGpu> gpu;               ///< the one GPU that is visible
  bool own_user = false;  ///< as root: also leave root outside (nothing private can be mounted)
  std::vector<std::pair<int, int>> fds;  ///< {ours, number inside}; all others are closed
  std::optional<int> stdin_fd, stdout_fd, stderr_fd;  ///< default: /dev/null
  Limits limits;
  uint64_t tmp_bytes = uint64_t{1} << 30;  ///< size of /tmp and /dev/shm, which are memory
  bool network = false;                    ///< share the host's network
  std::string hostname = "box";
  std::string image;  ///< docker only; "" = box_image()
  std::string label;  ///< docker only: value of the label cbench.run
};

/// What holds the limits of this box, for the record.
struct LimitReport {
  bool cgroup = false;     ///< memory and processes are bounded for the box as a whole
  bool processes = false;  ///< the number of processes is bounded at all
  std::string text;        ///< one sentence for people
};

/// A running box. Not copyable; the destructor kills it.
class Box {
 public:
  /// Starts it. Throws EnvironmentError: "box_unavailable" (with what to install or enable; never
  /// falls back to a weaker kind), "box_mount", "spawn".
  Box(BoxKind kind, const BoxSpec& spec);
  ~Box();
  Box(Box&&) noexcept;
  Box& operator=(Box&&) = delete;

  /// Waits up to `seconds` (negative: for ever) for the command; the rest of the box may live on.
  /// A death by signal N is reported as such; bwrap encodes it as exit code 128 + N, so a command
  /// that itself exits with 129..192 reads the same.
  std::optional<ExitStatus> wait(double seconds);
  /// SIGKILL for everything inside; returns when nothing is left. Idempotent.
  ExitStatus kill();
  /// SIGTERM to the command, up to `grace` seconds, then kill().
  ExitStatus stop(double grace);

  pid_t pid() const;    ///< of the process, in our namespace, that all in the box descend from
  pid_t inner() const;  ///< of the box's first process in our namespace, or pid() if unknown
  int pidfd() const;    ///< readable when the command has ended
  const LimitReport& limits() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Runs a command in a box to its end with captured output (first `max_output` bytes per stream),
/// killed at `timeout` seconds; nothing of it is left afterwards.
RunResult run_in_box(BoxKind kind, BoxSpec spec, double timeout, size_t max_output = 1u << 20);

/// The image of docker boxes that name none: what was set here (a contract's image), else
/// $CBENCH_IMAGE, else "cbench-box".
void set_box_image(const std::string& image);
std::string box_image();

/// Throws EnvironmentError("box_unavailable") unless boxes of this kind can be started here. The
/// outcome is kept for the life of the process.
void require_box(BoxKind kind);

}  // namespace cbench
