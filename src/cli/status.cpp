// cbench status: where runs stand: stage, time left, versions, verdicts.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "run/budget.h"
#include "run/journal.h"
#include "run/run_dir.h"
#include "run/state.h"
#include "run/summary.h"
#include "util/error.h"
#include "util/json.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {

struct Arguments {
  std::string run, runs_dir = "runs";
  bool json = false;
};

Json describe(const RunDir& run) {
  const RunState state = fold_journal(read_journal(run.journal()));
  const double used = std::max(state.used_seconds, read_heartbeat(run.heartbeat()));
  Json versions = Json::array();
  for (const auto& [number, version] : state.versions) {
    const auto verdict = state.verdicts.find("v" + std::to_string(number));
    const bool known = verdict != state.verdicts.end();
    versions.push_back(
        {{"version", number},
         {"note", version.note},
         {"bytes", version.bytes},
         {"status", known ? Json(verdict->second.status) : Json()},
         {"reward", known && verdict->second.reward ? Json(*verdict->second.reward) : Json()}});
  }
  const auto final = state.verdicts.find("final");
  const bool done = final != state.verdicts.end();
  const std::string best = best_version(state);
  return {{"run", run.path},
          {"run_id", state.run_id},
          {"task", state.task},
          {"agent", state.agent},
          {"stage", state.stage},
          {"driven", run_is_driven(run)},
          {"budget_seconds", state.budget_seconds},
          {"seconds_left", state.search_ended ? 0.0 : std::max(0.0, state.budget_seconds - used)},
          {"launches", state.launches.size()},
          {"search_ended", state.search_ended ? Json(*state.search_ended) : Json()},
          {"versions", versions},
          {"best_version", best.empty() ? Json() : Json(best)},
          {"status", done ? Json(final->second.status) : Json()},
          {"reward", done && final->second.reward ? Json(*final->second.reward) : Json()}};
}

Json broken(const RunDir& run, const Error& error) {
  return {{"run", run.path},
          {"run_id", run.id()},
          {"stage", "unreadable"},
          {"error", {{"code", error.code()}, {"message", error.what()}}}};
}

std::vector<RunDir> runs_below(const std::string& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    throw UsageError("no_runs", "no directory \"" + printable(directory) + "\" (--runs-dir)");
  }
  std::vector<RunDir> runs;
  for (const auto& task : fs::directory_iterator(directory, error)) {
    if (task.symlink_status().type() != fs::file_type::directory) continue;
    for (const auto& run : fs::directory_iterator(task.path(), error)) {
      if (fs::is_regular_file(run.path() / "journal.jsonl")) {
        runs.push_back({fs::absolute(run.path()).lexically_normal().string()});
      }
    }
  }
  std::sort(runs.begin(), runs.end(),
            [](const RunDir& a, const RunDir& b) { return a.path < b.path; });
  return runs;
}

std::string figure(const Json& value) {
  return value.is_number() ? std::to_string(value.get<double>()) : "-";
}

std::string word(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "-";
}

/// "searching, 1h 02m left" or "verifying (stopped: resume it)".
std::string stage_text(const Json& run) {
  std::string text = word(run, "stage");
  if (run.contains("error")) return text;
  if (run["seconds_left"].get<double>() > 0) {
    text += ", " + format_duration(run["seconds_left"].get<double>()) + " left";
  }
  if (text != "done" && !run["driven"].get<bool>()) text += " (stopped; cbench run --resume)";
  return text;
}

void print_one(const Json& run) {
  std::printf("%s\n  task     %s\n  stage    %s\n", word(run, "run").c_str(),
              word(run, "task").c_str(), stage_text(run).c_str());
  if (run.contains("error")) {
    std::printf("  error    %s\n", word(run["error"], "message").c_str());
    return;
  }
  std::printf("  agent    %s\n", printable(word(run, "agent")).c_str());
  for (const Json& version : run["versions"]) {
    std::printf("  v%-7d %s  %s  reward %s  %s\n", version["version"].get<int>(),
                format_size(version["bytes"].get<int64_t>()).c_str(),
                word(version, "status").c_str(), figure(version["reward"]).c_str(),
                printable(word(version, "note")).c_str());
  }
  std::printf("  final    %s  reward %s\n", word(run, "status").c_str(),
              figure(run["reward"]).c_str());
}

int run_status(const Arguments& arguments) {
  std::vector<RunDir> dirs;
  if (arguments.run.empty()) {
    dirs = runs_below(arguments.runs_dir);
  } else {
    dirs = {open_run_dir(arguments.run)};
  }
  Json runs = Json::array();
  for (const RunDir& dir : dirs) {
    try {
      runs.push_back(describe(dir));
    } catch (const Error& error) {
      if (!arguments.run.empty()) throw;
      runs.push_back(broken(dir, error));
    }
  }
  if (arguments.json) {
    Json json = {{"schema", "cbench.status.v1"}};
    if (arguments.run.empty()) {
      json["runs"] = runs;
    } else {
      json.update(runs[0]);
    }
    std::printf("%s\n", dump_json(json, 2).c_str());
    return 0;
  }
  for (const Json& run : runs) print_one(run);
  if (runs.empty()) std::printf("no runs in %s\n", arguments.runs_dir.c_str());
  return 0;
}

}  // namespace

void add_status(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "status", "Show where a run stands, or all runs: stage, time left, verdicts");
  command->add_option("run", arguments->run, "Run directory (default: all below --runs-dir)");
  command->add_option("--runs-dir", arguments->runs_dir, "Where runs are kept")
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([arguments, &exit_code] { exit_code = run_status(*arguments); });
}

}  // namespace cbench
