// Ranks within a task: 1 + the number of runs that are significantly better, so that ties are
// shared.
#pragma once

#include <vector>

#include "report/record.h"

namespace cbench {

/// True when `a` beats `b` beyond the noise of the blocks: the 95 % interval of the paired
/// difference of their log-likelihoods lies above zero. Without per-block figures of the same
/// blocks, when their intervals of ln F do not overlap; without intervals, when the reward is
/// larger.
bool significantly_better(const RunRecord& a, const RunRecord& b);

struct RankedRun {
  RunRecord run;
  int rank = 0;  ///< 0: not ranked
};

/// Tasks in name order; within a task ranked runs by rank, reward and run id, then gate_failed,
/// then the rest, each by run id.
std::vector<RankedRun> rank_runs(const std::vector<RunRecord>& runs);

}  // namespace cbench
