#include "report/record.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "task/contract.h"
#include "util/error.h"
#include "util/json.h"
#include "util/text.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;

const Json& member(const Json& object, const char* key) {
  static const Json kNone;
  if (!object.is_object()) return kNone;
  const auto found = object.find(key);
  return found == object.end() ? kNone : *found;
}

std::string text(const Json& object, const char* key) {
  const Json& value = member(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

Figure figure(const Json& object, const char* key) {
  const Json& value = member(object, key);
  if (!value.is_number()) return std::nullopt;
  const double number = value.get<double>();
  return std::isfinite(number) ? Figure(number) : std::nullopt;
}

Figure positive(const Json& object, const char* key) {
  const Figure value = figure(object, key);
  return value && *value > 0 ? value : std::nullopt;
}

int64_t count(const Json& object, const char* key) {
  const Json& value = member(object, key);
  return value.is_number_integer() ? std::max<int64_t>(0, value.get<int64_t>()) : 0;
}

void read_likelihood(const Json& json, VerdictFigures& verdict) {
  verdict.f = positive(json, "f");
  verdict.ppl = positive(json, "ppl");
  verdict.reference_ppl = positive(json, "reference_ppl");
  verdict.tokens = count(json, "tokens");
  const Json& interval = member(json, "interval");
  if (interval.is_array() && interval.size() == 2 && interval[0].is_number() &&
      interval[1].is_number()) {
    verdict.ln_f_low = interval[0].get<double>();
    verdict.ln_f_high = interval[1].get<double>();
  }
  const Json& blocks = member(json, "block_nll");
  if (!blocks.is_array()) return;
  for (const Json& block : blocks) {
    if (!block.is_number() || !std::isfinite(block.get<double>())) {
      verdict.block_nll.clear();
      return;
    }
    verdict.block_nll.push_back(block.get<double>());
  }
}

void read_measurements(const Json& json, VerdictFigures& verdict) {
  const Json& accuracy = member(json, "accuracy");
  verdict.accuracy = figure(accuracy, "mean");
  verdict.reference_accuracy = figure(accuracy, "reference_mean");
  const Json& benchmarks = member(accuracy, "benchmarks");
  if (benchmarks.is_object()) {
    for (const auto& [name, benchmark] : benchmarks.items()) {
      verdict.benchmarks[name] = {count(benchmark, "right"), count(benchmark, "total")};
    }
  }
  const Json& storage = member(json, "storage");
  const Figure after_load = positive(storage, "resident_after_load");
  const Figure after_inference = positive(storage, "resident_after_inference");
  verdict.resident_bytes = std::max(after_load, after_inference);
  verdict.package_bytes = positive(member(json, "package"), "bytes");
  verdict.package_sha256 = text(member(json, "package"), "sha256");
  verdict.bits_per_parameter = positive(json, "bits_per_parameter");
  const Json& decode = member(json, "decode");
  verdict.tokens_per_second = positive(decode, "tokens_per_second");
  verdict.reference_tokens_per_second = positive(decode, "reference_tokens_per_second");
}

void read_summary(const std::string& path, RunRecord& run) {
  try {
    const Json json = read_json(path);
    run.agent = text(json, "agent");
    run.agent_model = text(json, "agent_model");
    run.utc = text(json, "created_utc");
    run.versions = figure(json, "versions");
    run.hours_used = figure(json, "hours_used");
    run.budget_hours = figure(json, "budget_hours");
    run.cost_usd = figure(json, "cost_usd");
    run.input_tokens = figure(json, "input_tokens");
    run.output_tokens = figure(json, "output_tokens");
  } catch (const Error& error) {
    if (run.final.reason.empty()) run.final.reason = error.what();
  }
}

void read_contract(const std::string& path, RunRecord& run) {
  try {
    const Contract contract = load_contract(path, "tasks");
    run.model = contract.model.name;
    run.hardware = contract.hardware.device == "cpu" ? "cpu" : contract.hardware.gpu;
    run.limit_bytes = static_cast<double>(contract.limit);
    if (!run.budget_hours) run.budget_hours = contract.budget / 3600;
  } catch (const Error&) {
    // The row stays, without the contract's columns.
  }
}

/// Orders v2 before v10.
bool earlier_version(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

void read_version_verdicts(const fs::path& directory, RunRecord& run) {
  std::error_code error;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() != ".json" || name.size() < 2 || name[0] != 'v') continue;
    if (name.find_first_not_of("0123456789", 1) == std::string::npos) names.push_back(name);
  }
  std::sort(names.begin(), names.end(), earlier_version);
  for (const std::string& name : names) {
    run.version_verdicts.emplace_back(name, read_verdict((directory / (name + ".json")).string()));
  }
}

RunRecord read_run(const fs::path& directory) {
  RunRecord run;
  run.task = directory.parent_path().filename().string();
  run.run_id = directory.filename().string();
  run.final = read_verdict((directory / "verdicts" / "final.json").string());
  read_summary((directory / "SUMMARY.json").string(), run);
  read_contract((directory / "contract.yaml").string(), run);
  read_version_verdicts(directory / "verdicts", run);
  if (run.utc.empty()) run.utc = run.final.utc;
  return run;
}

bool is_run(const fs::path& directory) {
  std::error_code error;
  for (const char* name : {"journal.jsonl", "SUMMARY.json", "contract.yaml"}) {
    if (fs::is_regular_file(directory / name, error)) return true;
  }
  return false;
}

/// Directories below `parent`, sorted, links left out.
std::vector<fs::path> directories(const fs::path& parent) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    if (entry.symlink_status(error).type() == fs::file_type::directory) {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

bool RunRecord::ranks() const {
  return final.status == "scored" && final.reward && std::isfinite(*final.reward) &&
         *final.reward > 0;
}

VerdictFigures read_verdict(const std::string& path) {
  VerdictFigures verdict;
  verdict.status = "no_verdict";
  try {
    const Json json = read_json(path);
    if (text(json, "schema") != "cbench.verdict.v1") {
      verdict.reason = "not a cbench.verdict.v1 file";
      return verdict;
    }
    verdict.status = text(json, "status");
    verdict.utc = text(json, "started_utc");
    verdict.contract_sha256 = text(json, "contract_sha256");
    verdict.cbench_version = text(json, "cbench_version");
    verdict.reward = figure(json, "reward");
    const Json& reasons = member(json, "reasons");
    if (reasons.is_array() && !reasons.empty()) {
      verdict.reason = text(reasons[0], "code") + ": " + text(reasons[0], "message");
    }
    read_likelihood(member(json, "likelihood"), verdict);
    read_measurements(json, verdict);
  } catch (const Error& error) {
    verdict.reason = error.code() == "not_found" ? "no final verdict" : error.what();
  } catch (const std::exception& error) {
    verdict.reason = printable(error.what());
  }
  return verdict;
}

std::vector<RunRecord> read_runs(const std::string& runs_dir) {
  std::error_code error;
  if (!fs::is_directory(runs_dir, error)) {
    throw UsageError("no_runs",
                     "no directory \"" + printable(runs_dir) + "\"; name the runs with --runs-dir");
  }
  std::vector<RunRecord> runs;
  for (const fs::path& task : directories(runs_dir)) {
    for (const fs::path& run : directories(task)) {
      if (is_run(run)) runs.push_back(read_run(run));
    }
  }
  return runs;
}

}  // namespace cbench
