// Agents: what `--agent` names, and the command that it means inside a box.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cbench {

/// Where things are, as the agent sees them.
struct AgentPlaces {
  std::string program;      ///< the cbench binary
  std::string model;        ///< checkpoint, read-only
  std::string data;         ///< visible data, "" for none
  std::string work;         ///< its workspace and working directory
  std::string submission;   ///< what is measured after the deadline
  std::string socket;       ///< control socket: saves versions
  std::string instruction;  ///< instruction.md
  std::string header;       ///< the plugin interface, submission.h
};

struct AgentSpec {
  enum class Kind { kCommand, kBaseline };
  Kind kind = Kind::kBaseline;
  std::string text;     ///< as given: "command:...", "baseline"
  std::string command;  ///< of kCommand: for /bin/sh -c

  std::string name() const;  ///< "command", "baseline": for records
};

/// Throws UsageError ("agent") that lists what there is.
AgentSpec parse_agent(const std::string& text);

/// The command to start in the box for this task.
std::vector<std::string> agent_argv(const AgentSpec& agent, const AgentPlaces& places,
                                    const std::string& task, int64_t limit);

}  // namespace cbench
