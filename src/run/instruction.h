// What the agent is told: a template, filled with the contract and the places in its box.
#pragma once

#include <string>
#include <string_view>

#include "agent/agent.h"
#include "task/contract.h"

namespace cbench {

/// The text of src/run/instruction.md, compiled in.
std::string_view instruction_template();

/// The template with every {{name}} replaced. Throws InvalidError ("internal") for a name that
/// nothing fills.
std::string render_instruction(const Contract& contract, const AgentPlaces& places,
                               double budget_seconds);

}  // namespace cbench
