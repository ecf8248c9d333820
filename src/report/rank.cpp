#include "report/rank.h"

#include <algorithm>
#include <tuple>

#include "eval/statistics.h"

namespace cbench {
namespace {

constexpr uint64_t kSeed = 20260131;

std::vector<BlockNll> blocks_of(const VerdictFigures& verdict) {
  const auto count = static_cast<int64_t>(verdict.block_nll.size());
  std::vector<BlockNll> blocks;
  for (const double sum : verdict.block_nll) blocks.push_back({sum, verdict.tokens / count});
  return blocks;
}

bool same_blocks(const VerdictFigures& a, const VerdictFigures& b) {
  return !a.block_nll.empty() && a.block_nll.size() == b.block_nll.size() && a.tokens == b.tokens &&
         a.tokens >= static_cast<int64_t>(a.block_nll.size()) &&
         a.contract_sha256 == b.contract_sha256;
}

/// Scored, then gate failed, then everything without a valid verdict.
int group(const RankedRun& ranked) {
  if (ranked.rank > 0) return 0;
  return ranked.run.final.status == "gate_failed" ? 1 : 2;
}

}  // namespace

bool significantly_better(const RunRecord& a, const RunRecord& b) {
  const VerdictFigures& x = a.final;
  const VerdictFigures& y = b.final;
  if (same_blocks(x, y)) return bootstrap_log_f(blocks_of(y), blocks_of(x), kSeed).low > 0;
  if (x.ln_f_low && x.ln_f_high && y.ln_f_low && y.ln_f_high) return *x.ln_f_low > *y.ln_f_high;
  return x.reward.value_or(0) > y.reward.value_or(0);
}

std::vector<RankedRun> rank_runs(const std::vector<RunRecord>& runs) {
  std::vector<RankedRun> ranked;
  for (const RunRecord& run : runs) {
    RankedRun entry{run, 0};
    if (run.ranks()) {
      entry.rank = 1;
      for (const RunRecord& other : runs) {
        if (&other == &run || other.task != run.task || !other.ranks()) continue;
        if (significantly_better(other, run)) ++entry.rank;
      }
    }
    ranked.push_back(std::move(entry));
  }
  std::sort(ranked.begin(), ranked.end(), [](const RankedRun& a, const RankedRun& b) {
    const auto key = [](const RankedRun& r) {
      return std::tuple(r.run.task, group(r), r.rank,
                        r.rank > 0 ? -r.run.final.reward.value() : 0.0, r.run.run_id);
    };
    return key(a) < key(b);
  });
  return ranked;
}

}  // namespace cbench
