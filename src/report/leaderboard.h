// leaderboard.csv, one line a run, and ablations.csv, one line for each way of running a task.
// Columns: docs/report.md. The same runs give the same bytes.
#pragma once

#include <string>
#include <vector>

#include "report/rank.h"
#include "task/contract.h"

namespace cbench {

/// `published` tasks with published BF16 figures add a row of status "reference" each.
std::string leaderboard_csv(const std::vector<RankedRun>& runs,
                            const std::vector<Contract>& published = {});

/// Groups by task, agent, agent model and budget: how many runs, how they ended, mean and best
/// reward. A failed gate counts as 0 in the mean; an invalid run does not count.
std::string ablations_csv(const std::vector<RankedRun>& runs);

}  // namespace cbench
