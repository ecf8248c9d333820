#include "report/leaderboard.h"

#include <cmath>
#include <map>
#include <tuple>

#include "report/csv.h"

namespace cbench {
namespace {

const std::vector<std::string> kColumns{"rank",
                                        "task",
                                        "model",
                                        "limit_bytes",
                                        "hardware",
                                        "agent",
                                        "agent_model",
                                        "run_id",
                                        "utc",
                                        "status",
                                        "reason",
                                        "reward",
                                        "f",
                                        "f_low",
                                        "f_high",
                                        "ppl",
                                        "ppl_reference",
                                        "accuracy_gsm8k",
                                        "accuracy_humaneval",
                                        "accuracy_triviaqa",
                                        "accuracy_mean",
                                        "accuracy_reference",
                                        "accuracy_retained",
                                        "package_bytes",
                                        "resident_bytes",
                                        "bits_per_parameter",
                                        "decode_tokens_per_second",
                                        "decode_speed_ratio",
                                        "versions",
                                        "hours_used",
                                        "cost_usd",
                                        "input_tokens",
                                        "output_tokens",
                                        "package_sha256",
                                        "contract_sha256",
                                        "cbench_version"};

Figure exponential(const Figure& ln) { return ln ? Figure(std::exp(*ln)) : std::nullopt; }

Figure ratio(const Figure& a, const Figure& b) {
  return a && b && *b > 0 ? Figure(*a / *b) : std::nullopt;
}

Figure share(const VerdictFigures& verdict, const char* benchmark) {
  const auto found = verdict.benchmarks.find(benchmark);
  if (found == verdict.benchmarks.end() || found->second.total == 0) return std::nullopt;
  return static_cast<double>(found->second.right) / static_cast<double>(found->second.total);
}

void add_run(CsvWriter& csv, const RankedRun& ranked) {
  const RunRecord& run = ranked.run;
  const VerdictFigures& v = run.final;
  csv.integer(ranked.rank > 0 ? Figure(ranked.rank) : std::nullopt).text(run.task).text(run.model);
  csv.integer(run.limit_bytes).text(run.hardware).text(run.agent).text(run.agent_model);
  csv.text(run.run_id).text(run.utc).text(v.status).text(v.reason);
  csv.number(v.reward).number(v.f);
  csv.number(exponential(v.ln_f_low)).number(exponential(v.ln_f_high));
  csv.number(v.ppl).number(v.reference_ppl);
  for (const char* name : {"gsm8k", "humaneval", "triviaqa"}) csv.number(share(v, name));
  csv.number(v.accuracy)
      .number(v.reference_accuracy)
      .number(ratio(v.accuracy, v.reference_accuracy));
  csv.integer(v.package_bytes).integer(v.resident_bytes).number(v.bits_per_parameter);
  csv.number(v.tokens_per_second);
  csv.number(ratio(v.tokens_per_second, v.reference_tokens_per_second));
  csv.integer(run.versions).number(run.hours_used).number(run.cost_usd);
  csv.integer(run.input_tokens).integer(run.output_tokens);
  csv.text(v.package_sha256).text(v.contract_sha256).text(v.cbench_version);
  csv.end_row();
}

/// A row that holds only what was published.
void add_published(CsvWriter& csv, const Contract& contract) {
  RankedRun row;
  row.run.task = contract.name;
  row.run.model = contract.model.name;
  row.run.hardware = contract.hardware.gpu;
  row.run.limit_bytes = static_cast<double>(contract.limit);
  row.run.agent = "BF16";
  row.run.final.status = "reference";
  row.run.final.reason = "published figures of the source model";
  row.run.final.ppl = contract.published.verification_ppl;
  row.run.final.reference_ppl = contract.published.verification_ppl;
  row.run.final.accuracy = contract.published.accuracy_percent / 100;
  row.run.final.reference_accuracy = row.run.final.accuracy;
  row.run.final.bits_per_parameter = 16;
  add_run(csv, row);
}

struct Group {
  int runs = 0, scored = 0, failed = 0, invalid = 0;
  double reward_sum = 0, best = 0, hours = 0, cost = 0;
  int with_hours = 0, with_cost = 0;
};

Figure mean(double sum, int count) { return count > 0 ? Figure(sum / count) : std::nullopt; }

void count_run(Group& group, const RankedRun& ranked) {
  const RunRecord& run = ranked.run;
  ++group.runs;
  if (ranked.rank > 0) {
    ++group.scored;
    group.reward_sum += *run.final.reward;
    group.best = std::max(group.best, *run.final.reward);
  } else if (run.final.status == "gate_failed") {
    ++group.failed;
  } else {
    ++group.invalid;
  }
  if (run.hours_used) group.hours += *run.hours_used, ++group.with_hours;
  if (run.cost_usd) group.cost += *run.cost_usd, ++group.with_cost;
}

}  // namespace

std::string leaderboard_csv(const std::vector<RankedRun>& runs,
                            const std::vector<Contract>& published) {
  CsvWriter csv(kColumns);
  for (const RankedRun& run : runs) add_run(csv, run);
  for (const Contract& contract : published) {
    if (contract.published.verification_ppl > 0) add_published(csv, contract);
  }
  return csv.take();
}

std::string ablations_csv(const std::vector<RankedRun>& runs) {
  using Key = std::tuple<std::string, std::string, std::string, double>;
  std::map<Key, Group> groups;
  for (const RankedRun& ranked : runs) {
    const RunRecord& run = ranked.run;
    count_run(groups[{run.task, run.agent, run.agent_model, run.budget_hours.value_or(0)}], ranked);
  }
  CsvWriter csv({"task", "agent", "agent_model", "budget_hours", "runs", "scored", "gate_failed",
                 "invalid", "mean_reward", "best_reward", "mean_hours_used", "mean_cost_usd"});
  for (const auto& [key, group] : groups) {
    const auto& [task, agent, model, budget] = key;
    csv.text(task).text(agent).text(model).number(budget > 0 ? Figure(budget) : std::nullopt);
    csv.integer(group.runs).integer(group.scored).integer(group.failed).integer(group.invalid);
    csv.number(mean(group.reward_sum, group.scored + group.failed));
    csv.number(group.scored > 0 ? Figure(group.best) : std::nullopt);
    csv.number(mean(group.hours, group.with_hours)).number(mean(group.cost, group.with_cost));
    csv.end_row();
  }
  return csv.take();
}

}  // namespace cbench
