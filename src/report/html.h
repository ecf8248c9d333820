// One self-contained page: the leaderboard of each task, quality against bits, and each run's
// versions.
#pragma once

#include <string>
#include <vector>

#include "report/rank.h"

namespace cbench {

/// No scripts, no outside resources; every text from a run is escaped.
std::string report_html(const std::vector<RankedRun>& runs);

}  // namespace cbench
