#include "run/summary.h"

#include "util/error.h"
#include "util/file.h"
#include "util/json.h"
#include "util/units.h"

namespace cbench {
namespace {

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

/// A member of nested objects, null where it is missing.
Json at(const Json& json, std::initializer_list<const char*> keys) {
  const Json* here = &json;
  for (const char* key : keys) {
    if (!here->is_object() || !here->contains(key)) return nullptr;
    here = &(*here)[key];
  }
  return *here;
}

Json verdict_file(const RunDir& run, const std::string& name) {
  try {
    return read_json(run.verdicts() + "/" + name + ".json");
  } catch (const Error&) {
    return nullptr;
  }
}

Json launches_json(const RunState& state) {
  Json launches = Json::array();
  for (const LaunchRecord& launch : state.launches) {
    launches.push_back({{"launch", launch.number},
                        {"started_utc", launch.started_utc},
                        {"ended_utc", launch.ended_utc},
                        {"why", launch.why},
                        {"status", launch.status},
                        {"seconds", launch.seconds},
                        {"progress", launch.progress}});
  }
  return launches;
}

Json final_json(const RunDir& run, const RunState& state) {
  const auto found = state.verdicts.find("final");
  if (found == state.verdicts.end()) return nullptr;
  const Json verdict = verdict_file(run, "final");
  return {{"status", found->second.status},
          {"reward", or_null(found->second.reward)},
          {"reasons", at(verdict, {"reasons"})},
          {"taken_from", found->second.taken_from}};
}

Json ten_f(const Json& verdict) {
  const Json f = at(verdict, {"likelihood", "f"});
  return f.is_number() ? Json(10 * f.get<double>()) : Json();
}

Json version_json(const RunDir& run, const RunState& state, const VersionRecord& version) {
  const std::string name = "v" + std::to_string(version.number);
  const auto record = state.verdicts.find(name);
  const Json verdict = verdict_file(run, name);
  const bool measured = record != state.verdicts.end();
  return {{"version", version.number},
          {"note", version.note},
          {"utc", version.utc},
          {"used_seconds", version.used_seconds},
          {"bytes", version.bytes},
          {"package_hash", version.package_hash},
          {"status", measured ? Json(record->second.status) : Json()},
          {"reward", measured ? or_null(record->second.reward) : Json()},
          {"ten_f", ten_f(verdict)},
          {"accuracy", at(verdict, {"accuracy", "mean"})},
          {"resident_bytes", at(verdict, {"storage", "resident_after_inference"})},
          {"decode_tokens_per_second", at(verdict, {"decode", "tokens_per_second"})}};
}

}  // namespace

std::string best_version(const RunState& state) {
  std::string best;
  double reward = 0;
  for (const auto& [number, version] : state.versions) {
    const std::string name = "v" + std::to_string(number);
    const auto found = state.verdicts.find(name);
    if (found == state.verdicts.end() || found->second.status != "scored") continue;
    if (!found->second.reward || (!best.empty() && *found->second.reward <= reward)) continue;
    best = name;
    reward = *found->second.reward;
  }
  return best;
}

std::string summary_json(const RunDir& run, const RunState& state) {
  const std::string best = best_version(state);
  const FrozenRecord frozen = state.frozen.value_or(FrozenRecord{});
  const double used = std::min(state.used_seconds, state.budget_seconds);
  Json json = {{"schema", "cbench.summary.v1"},
               {"run_id", state.run_id},
               {"task", state.task},
               {"state", state.stage},
               {"agent", state.agent.starts_with("command:") ? "command" : state.agent},
               {"agent_model", nullptr},
               {"agent_given", state.agent},
               {"box", state.box},
               {"created_utc", state.created_utc},
               {"contract_sha256", state.contract_sha256},
               {"cbench_version", CBENCH_VERSION},
               {"budget_hours", state.budget_seconds / 3600},
               {"hours_used", used / 3600},
               {"versions", state.versions.size()},
               {"best_version", best.empty() ? Json() : Json(best)},
               {"best_reward", best.empty() ? Json() : or_null(state.verdicts.at(best).reward)},
               {"final", final_json(run, state)},
               {"submission",
                {{"package_hash", frozen.package_hash},
                 {"bytes", frozen.bytes},
                 {"refused", frozen.code.empty() ? Json() : Json(frozen.code)}}},
               {"search_ended", state.search_ended ? Json(*state.search_ended) : Json()},
               {"launches", launches_json(state)},
               {"cost_usd", nullptr},
               {"input_tokens", nullptr},
               {"output_tokens", nullptr}};
  return dump_json(json, 2) + "\n";
}

std::string metrics_json(const RunDir& run, const RunState& state) {
  Json versions = Json::array();
  for (const auto& [number, version] : state.versions) {
    versions.push_back(version_json(run, state, version));
  }
  Json json = {{"schema", "cbench.metrics.v1"},
               {"run_id", state.run_id},
               {"task", state.task},
               {"budget_seconds", state.budget_seconds},
               {"versions", versions},
               {"launches", launches_json(state)}};
  return dump_json(json, 2) + "\n";
}

}  // namespace cbench
