#include "run/state.h"

#include <algorithm>

#include "util/error.h"
#include "util/json.h"

namespace cbench {
namespace {

std::string text(const Json& json, const char* key) {
  return json.contains(key) ? json_string(json, key, "journal") : std::string();
}

double number(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_number() ? json[key].get<double>() : 0;
}

bool flag(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_boolean() && json[key].get<bool>();
}

void created(RunState& state, const Json& json, const JournalEvent& event) {
  state.run_id = text(json, "run_id");
  state.task = text(json, "task");
  state.tasks_root = text(json, "tasks_root");
  state.agent = text(json, "agent");
  state.box = text(json, "box");
  state.contract_sha256 = text(json, "contract_sha256");
  state.budget_seconds = number(json, "budget_seconds");
  state.relaunch = flag(json, "relaunch");
  state.created_utc = event.utc;
  state.stage = "created";
}

void launch(RunState& state, const Json& json, const JournalEvent& event) {
  LaunchRecord record;
  record.number = static_cast<int>(json_int(json, "launch", "journal"));
  record.started_utc = event.utc;
  state.launches.push_back(record);
  state.stage = "searching";
  state.interrupted = false;
}

void launch_ended(RunState& state, const Json& json, const JournalEvent& event) {
  if (state.launches.empty()) {
    throw InvalidError("journal_corrupt", "a launch ends that never started");
  }
  LaunchRecord& record = state.launches.back();
  record.ended_utc = event.utc;
  record.why = text(json, "why");
  record.status = text(json, "status");
  record.seconds = number(json, "seconds");
  record.progress = flag(json, "progress");
  state.used_seconds = std::max(state.used_seconds, number(json, "used_seconds"));
  const bool idle = !record.progress && (record.why == "exited" || record.why == "signalled");
  if (idle) ++state.idle_launches;
  if (record.progress) state.idle_launches = 0;
}

void version(RunState& state, const Json& json, const JournalEvent& event) {
  VersionRecord record;
  record.number = static_cast<int>(json_int(json, "number", "journal"));
  record.note = text(json, "note");
  record.utc = event.utc;
  record.package_hash = text(json, "package_hash");
  record.bytes = static_cast<uint64_t>(number(json, "bytes"));
  record.used_seconds = number(json, "used_seconds");
  state.versions[record.number] = record;
}

void frozen(RunState& state, const Json& json) {
  state.stage = "frozen";
  state.frozen = {text(json, "package_hash"), static_cast<uint64_t>(number(json, "bytes")),
                  text(json, "code"), text(json, "message")};
}

void verdict(RunState& state, const Json& json) {
  VerdictRecord record;
  record.status = text(json, "status");
  record.key = text(json, "key");
  record.taken_from = text(json, "taken_from");
  if (json.contains("reward") && json["reward"].is_number()) {
    record.reward = json["reward"].get<double>();
  }
  state.verdicts[json_string(json, "of", "journal")] = record;
}

void apply(RunState& state, const JournalEvent& event) {
  const Json json = parse_json(event.line, "journal");
  if (event.name == "created") return created(state, json, event);
  if (event.name == "prepared") state.stage = "prepared";
  if (event.name == "launch") launch(state, json, event);
  if (event.name == "launch_ended") launch_ended(state, json, event);
  if (event.name == "version") version(state, json, event);
  if (event.name == "search_ended") {
    state.search_ended = text(json, "why");
    state.used_seconds = std::max(state.used_seconds, number(json, "used_seconds"));
  }
  if (event.name == "frozen") frozen(state, json);
  if (event.name == "verifying") state.stage = "verifying";
  if (event.name == "verdict") verdict(state, json);
  if (event.name == "done") state.stage = "done";
  if (event.name == "interrupted") state.interrupted = true;
  if (event.name == "resumed") state.interrupted = false;
}

}  // namespace

RunState fold_journal(const std::vector<JournalEvent>& events) {
  RunState state;
  try {
    for (const JournalEvent& event : events) apply(state, event);
  } catch (const UsageError& error) {
    throw InvalidError("journal_corrupt", error.what());
  }
  return state;
}

bool verdict_before(const std::string& a, const std::string& b) {
  if ((a == "final") != (b == "final")) return a == "final";
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

}  // namespace cbench
