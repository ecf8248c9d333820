// SUMMARY.json and METRICS.json: a run in figures, made from its journal and its verdicts.
// Schemas: docs/run-directory.md.
#pragma once

#include <string>

#include "run/run_dir.h"
#include "run/state.h"

namespace cbench {

/// Schema cbench.summary.v1.
std::string summary_json(const RunDir& run, const RunState& state);
/// Schema cbench.metrics.v1: one entry per version, and the launches.
std::string metrics_json(const RunDir& run, const RunState& state);

/// "v3": the version with the highest reward among the scored ones; "" for none.
std::string best_version(const RunState& state);

}  // namespace cbench
