// The evaluator's side of an engine: starts it in a box, feeds it, watches it, and names how it
// ends.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "box/box.h"
#include "engine/channel.h"
#include "engine/gpu_memory.h"
#include "engine/logits_reader.h"
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
  /// Random weights of the config's shapes and no package: for benchmarks only.
  bool synthetic = false;
  bool share_device_memory = true;  ///< false: logits go through host memory on a GPU too
  uint64_t memory = 0;              ///< bytes of host memory for the box; 0 = no limit
  int64_t stream_budget = -1;       ///< see EngineServerOptions; for tests
};

/// What the engine says about its memory, and what is seen from outside.
struct EngineMemory {
  ArenaReport arena;  ///< the engine's own report; trusted only as far as it explains the rest
  /// What caches, activations and workspace may take: reported before a plugin was in the process.
  std::array<int64_t, kCategories> planned{};
  int64_t outside = 0;   ///< host memory of the engine's processes: anonymous, shared, memory files
  int64_t baseline = 0;  ///< the same before the package was touched
  /// On a GPU the arena lies on the device, and so these are measured beside the host's memory.
  std::optional<DeviceUse> device;
  DeviceUse device_baseline;
  /// Host memory with weights that stream to the device. Only an engine without a plugin is asked:
  /// what a submission pins explains nothing.
  int64_t streamed = 0;

  /// Bytes that the arena explains: what it declares as model storage, which counts anyway, and the
  /// rest up to what was planned.
  int64_t explained() const;
  /// Growth since the baseline that nothing declared explains, beyond an allowance each
  /// (docs/engine-protocol.md). On a GPU host memory explains nothing: pinned buffers and host
  /// copies of weights count in full.
  int64_t unexplained_host() const;
  int64_t unexplained_device() const;   ///< charged to the engine's processes
  int64_t unexplained_unowned() const;  ///< charged to nobody: managed memory
  /// All of it: counts as model storage.
  int64_t unexplained() const;
  int64_t resident() const;  ///< model storage: declared, streamed and unexplained
  /// "300 MiB of device memory, 64 MiB of host memory"; "" when everything is explained.
  std::string explain() const;
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
  /// Whether weights stream from host memory: every forward, a step too, then takes as long as
  /// copying them.
  bool streams() const { return streamed_ > 0; }

  /// Runs the sequences as one batch and hands over the wanted rows in order, chunk by chunk:
  /// rows [n, vocab] fp32 for reader(), of which the first is wanted row number `first` of the
  /// call.
  using OnRows = std::function<void(const float* rows, int64_t first, int64_t n)>;
  void forward(std::span<const EngineSequence> sequences, const OnRows& on_rows);

  /// Greedy decoding on the engine's device; `on_token` is called as each id arrives.
  void generate(int32_t slot, int32_t first, int32_t start, int64_t count,
                const std::function<void(int32_t)>& on_token);

  /// Computes from the rows that forward() hands over, wherever they lie.
  LogitsReader& reader() { return *reader_; }
  const char* logits_kind() const { return logits_->kind(); }  ///< "host" or "cuda"
  /// The GPU's meter; null on the CPU.
  const GpuMeter* gpu() const { return gpu_.get(); }

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
  void create_logits();
  Message receive(double timeout);
  void send(const Json& head, std::string_view payload = {}, int fd = -1);
  BoxSpec box_spec(int socket, int log) const;
  ArenaReport arena_of(const Json& storage);
  int64_t streamed_of(const Json& storage);

  EngineOptions options_;
  bool package_touched_ = false;
  std::unique_ptr<LogTail> log_;
  std::unique_ptr<Box> box_;
  std::unique_ptr<Channel> channel_;
  Fd buffer_;  // behind logits_
  std::unique_ptr<SharedLogits> logits_;
  std::unique_ptr<LogitsReader> reader_;
  std::unique_ptr<GpuMeter> gpu_;
  DeviceUse device_baseline_;
  size_t half_floats_ = 0;
  int64_t vocab_ = 0;
  int64_t baseline_ = 0;
  std::array<int64_t, kCategories> planned_{};
  int64_t streamed_ = 0;
  double load_seconds_ = 0;
  std::string device_name_;
};

/// A process and all its descendants.
std::vector<pid_t> process_tree(pid_t root);

/// Memory of a process and all its descendants, in bytes (/proc/PID/status and fd).
struct TreeMemory {
  int64_t anonymous = 0;  ///< private, resident or swapped out
  int64_t shared = 0;     ///< shared, resident and mapped
  int64_t held = 0;       ///< of memory files that are open, whether mapped or not
};
/// `ours` is the inode of a memory file that is left out of `held`; 0 = none.
TreeMemory process_tree_memory(pid_t root, uint64_t ours = 0);

}  // namespace cbench
