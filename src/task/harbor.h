// Exports a task as a Harbor task directory (task.toml schema 1.4): instruction, environment,
// verifier.
#pragma once

#include <string>

#include "task/contract.h"

namespace cbench {

/// Writes `directory`/{task.toml, instruction.md, environment/Dockerfile, tests/...}. The verifier
/// runs in a box of its own, without network, and writes the reward to one file. Throws UsageError
/// ("exists") when `directory` exists.
void export_harbor(const Contract& contract, const std::string& directory);

}  // namespace cbench
