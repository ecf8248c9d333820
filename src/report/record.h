// What the report knows of one run, read from its directory (docs/run-directory.md,
// docs/verdict.md). Nothing here is required: a missing or broken file becomes a reason, never an
// error of the report.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace cbench {

using Figure = std::optional<double>;  ///< absent = not measured; never NaN or infinite

struct BenchmarkFigures {
  int64_t right = 0, total = 0;
};

/// One verdict file in figures.
struct VerdictFigures {
  std::string status;  ///< "scored", "gate_failed", "invalid"
  std::string reason;  ///< first reason, or why the file could not be read
  std::string utc, package_sha256, contract_sha256, cbench_version;
  Figure reward, f, ln_f_low, ln_f_high, ppl, reference_ppl;
  Figure accuracy, reference_accuracy;
  Figure package_bytes, resident_bytes, bits_per_parameter;
  Figure tokens_per_second, reference_tokens_per_second;
  std::map<std::string, BenchmarkFigures> benchmarks;
  std::vector<double> block_nll;  ///< per block, for paired comparison; empty when not given
  int64_t tokens = 0;             ///< of all blocks
};

struct RunRecord {
  std::string task, run_id, model, hardware, agent, agent_model, utc;
  Figure limit_bytes, budget_hours, versions, hours_used, cost_usd, input_tokens, output_tokens;
  VerdictFigures final;
  std::vector<std::pair<std::string, VerdictFigures>>
      version_verdicts;  ///< "v1", "v2", ... in order

  /// Only these are ranked: a finished verdict, every gate passed, a finite positive reward.
  bool ranks() const;
};

/// Every run below `runs_dir`/<task>/<run-id>, sorted by task and run id. Links are not followed.
/// Throws UsageError ("no_runs") when the directory does not exist.
std::vector<RunRecord> read_runs(const std::string& runs_dir);

/// Reads one verdict file; never throws.
VerdictFigures read_verdict(const std::string& path);

}  // namespace cbench
