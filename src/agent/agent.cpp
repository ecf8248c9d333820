#include "agent/agent.h"

#include "util/error.h"
#include "util/text.h"

namespace cbench {

std::string AgentSpec::name() const { return kind == Kind::kCommand ? "command" : "baseline"; }

AgentSpec parse_agent(const std::string& text) {
  constexpr std::string_view kCommand = "command:";
  AgentSpec agent;
  agent.text = text;
  if (text == "baseline") return agent;
  if (text.starts_with(kCommand) &&
      text.find_first_not_of(" \t\n", kCommand.size()) != std::string::npos) {
    agent.kind = AgentSpec::Kind::kCommand;
    agent.command = text.substr(kCommand.size());
    return agent;
  }
  const std::string near = nearest(text, {"baseline", "command:"});
  throw UsageError("agent", "unknown agent \"" + printable(text) +
                                "\": give baseline or command:<shell command>" +
                                (near.empty() ? "" : "; did you mean " + near + "?"));
}

std::vector<std::string> agent_argv(const AgentSpec& agent, const AgentPlaces& places,
                                    const std::string& task, int64_t limit) {
  if (agent.kind == AgentSpec::Kind::kCommand) return {"/bin/sh", "-c", agent.command};
  return {places.program, "baseline-agent", "--model",
          places.model,   "--submission",   places.submission,
          "--work",       places.work,      "--task",
          task,           "--limit",        std::to_string(limit),
          "--program",    places.program};
}

}  // namespace cbench
