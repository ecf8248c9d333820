// The agent's box: what is mounted where, and what never is. Hidden items, the hidden reference and
// the verification documents stay outside.
#pragma once

#include <string>
#include <vector>

#include "agent/agent.h"
#include "box/box.h"
#include "run/run_dir.h"
#include "task/contract.h"

namespace cbench {

/// Environment variable that marks every process of a run's agent: its value is the run id.
inline constexpr const char* kRunVariable = "CBENCH_RUN";

/// Where the agent finds things: fixed places in a box, the host's own paths without one.
AgentPlaces agent_places(BoxKind kind, const RunDir& run, const Contract& contract);

/// Everything but argv. `program` is our binary. Writes the ./version script and, without a box, a
/// directory of links. Throws UsageError ("hidden_visible") when the contract's visible data would
/// show hidden data.
BoxSpec agent_box(BoxKind kind, const RunDir& run, const Contract& contract,
                  const std::string& program);

/// Files and directories that the agent sees read-only, as {host, inside}. For tests and records.
std::vector<Mount> input_mounts(const RunDir& run, const Contract& contract,
                                const std::string& program);

/// Processes that carry the run's mark.
std::vector<pid_t> marked_processes(const std::string& run_id);

/// Kills those; returns how many there were.
int end_marked_processes(const std::string& run_id);

}  // namespace cbench
