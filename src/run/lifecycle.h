// A run from its creation to its verdict: created -> prepared -> searching -> frozen -> verifying
// -> done. Every transition is in the journal before it is acted on and can be repeated, so that a
// run continues after a crash at any point.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/agent.h"
#include "box/box.h"
#include "run/run_dir.h"
#include "task/contract.h"

namespace cbench {

struct NewRun {
  Contract contract;
  AgentSpec agent;
  double budget_seconds = 0;
  std::string runs_dir = "runs";
  BoxKind box = BoxKind::kBwrap;
  bool relaunch = false;  ///< start the agent again even when it ended well with a submission
};

struct DriveOptions {
  std::string program;  ///< the cbench binary that the agent gets
  /// What verifies, without target and --json; empty = {program, --tasks DIR, verify}.
  std::vector<std::string> verify_command;
  int interrupt_fd = -1;  ///< readable: stop cleanly
  bool quiet = false;
  double backoff = 1;  ///< seconds before the first relaunch of an agent that did nothing
  uint64_t max_output = uint64_t{256} << 20;  ///< bytes kept of each stream of a launch
};

struct RunOutcome {
  std::string state;   ///< "done", "interrupted"
  std::string status;  ///< of the final verdict
  std::optional<double> reward;
  std::string best_version;  ///< "v3", "" for none
  int exit_code = 0;         ///< 0, 1, 4 as the verdict; kInterruptedExit
};

inline constexpr int kInterruptedExit = 130;

/// Checks that the run can be carried to its end (checkpoint, reference, box) and creates its
/// directory with the first journal event. Throws EnvironmentError ("no_checkpoint",
/// "no_reference", "box_unavailable").
RunDir create_run(const NewRun& run);

/// Does whatever the journal says is left to do. Throws UsageError ("run_busy"), InvalidError
/// ("journal_corrupt"), EnvironmentError; after any of them the run can be resumed.
RunOutcome drive_run(const RunDir& run, const DriveOptions& options);

}  // namespace cbench
