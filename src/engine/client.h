// The evaluator's side of an engine: starts it in a box, feeds it, watches it, and names how it
// ends.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "box/box.h"
#include "engine/channel.h"
#include "engine/shared_logits.h"
#include "runtime/arena.h"
#include "runtime/ops.h"
#include "util/error.h"

namespace cbench {

struct EngineOptions {
  std::string package;  ///< directory on the host; mounted read-only
  std::string plugin;   ///< compiled plugin on the host; "" = none
  std::string config;   ///< text of the task's config.json
  std::string program;  ///< the cbench binary to run as the engine; "" = this program itself
  BoxKind box = BoxKind::kBwrap;
  std::string device = "cpu";
  Capacity capacity;
  double load_timeout = 120;  ///< seconds from start to ready
  double reply_timeout = 60;  ///< seconds for one reply
  double deadline = -1;  ///< boot_seconds() at which nothing is waited for any longer; < 0 = none
  uint64_t memory = 0;   ///< bytes of host memory for the box; 0 = no limit
};

/// What the engine says about its memory, and what is seen from outside.
struct EngineMemory {
  ArenaReport arena;     ///< the engine's own report; trusted only as far as it explains `outside`
  int64_t outside = 0;   ///< bytes seen by the evaluator: anonymous and shared host memory (CPU)
  int64_t baseline = 0;  ///< the same before the package was touched
  /// Outside growth that the arena does not explain; counts as model storage beyond a small
  /// allowance.
  int64_t unexplained() const;
  int64_t resident() const;  ///< model storage: declared plus unexplained
};

/// Rows of one sequence to run. Logits are wanted for its rows [first_wanted, ids.size()).
struct EngineSequence {
  int32_t slot = 0;
  int32_t start = 0;  ///< tokens of this slot already in the cache
  std::span<const int32_t> ids;
  int32_t first_wanted = 0;
};

/// Throws Error with one of the codes engine_crashed, engine_exited, engine_hung,
/// engine_out_of_memory, engine_protocol, engine_error, time_limit, or a code that the engine
/// reported (plugin_failed, missing_tensor, ...). The message ends with the engine's last log
/// lines. Exit kGateFailed: the submission's failure. Exit kInvalid: ours, because the package was
/// not touched yet, or has no plugin and the engine found no fault in its files.
class Engine {
 public:
  explicit Engine(const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int64_t vocab() const { return vocab_; }
  const std::string& device_name() const { return device_name_; }
  const Capacity& capacity() const { return options_.capacity; }
  double load_seconds() const { return load_seconds_; }

  /// Runs the sequences as one batch and hands over the wanted rows in order, chunk by chunk:
  /// rows [n, vocab] fp32, of which the first is wanted row number `first` of the call.
  using OnRows = std::function<void(const float* rows, int64_t first, int64_t n)>;
  void forward(std::span<const EngineSequence> sequences, const OnRows& on_rows);

  /// Greedy decoding on the engine's device; `on_token` is called as each id arrives.
  void generate(int32_t slot, int32_t first, int32_t start, int64_t count,
                const std::function<void(int32_t)>& on_token);

  /// Asks the engine to trim, and measures.
  EngineMemory memory();

  /// Polite end; throws if the engine does not leave in time or exits unwell.
  void close();

  pid_t pid() const;

 private:
  class LogTail;

  [[noreturn]] void fail(const ChannelError& error);
  [[noreturn]] void fail(const std::string& code, const std::string& message);
  [[noreturn]] void fail(Exit exit, const std::string& code, const std::string& message);
  [[noreturn]] void fail_reported(const Json& head);
  bool submission_runs() const { return package_touched_ && !options_.plugin.empty(); }
  int64_t outside_memory() const;
  Message receive(double timeout);
  void send(const Json& head, std::string_view payload = {}, int fd = -1);
  BoxSpec box_spec(int socket, int log) const;
  ArenaReport arena_of(const Json& storage);

  EngineOptions options_;
  bool package_touched_ = false;
  std::unique_ptr<LogTail> log_;
  std::unique_ptr<Box> box_;
  std::unique_ptr<Channel> channel_;
  Fd buffer_;  // behind logits_
  std::unique_ptr<SharedLogits> logits_;
  size_t half_floats_ = 0;
  int64_t vocab_ = 0;
  int64_t baseline_ = 0;
  double load_seconds_ = 0;
  std::string device_name_;
};

/// Memory of a process and all its descendants, in bytes (/proc/PID/status and fd).
struct TreeMemory {
  int64_t anonymous = 0;  ///< private, resident or swapped out
  int64_t shared = 0;     ///< shared, resident and mapped
  int64_t held = 0;       ///< of memory files that are open, whether mapped or not
};
/// `ours` is the inode of a memory file that is left out of `held`; 0 = none.
TreeMemory process_tree_memory(pid_t root, uint64_t ours = 0);

}  // namespace cbench
