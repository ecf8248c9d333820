#include "agent/baseline.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "util/error.h"
#include "util/file.h"
#include "util/json.h"
#include "util/process.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {

constexpr double kCheckTimeout = 4 * 3600;
constexpr double kWorthSaving = 0.002;  // of 10 F
constexpr double kStep = 0.14;          // of the limit, between the sizes of candidates
constexpr size_t kMaxOutput = 16u << 20;

struct Opinion {
  std::optional<double> reward;  ///< 10 F; nothing when the Checker gave none
  bool refused = false;          ///< measured or refused, and a gate does not hold
  std::string text;
};

/// What `cbench check` says of a package.
Opinion check(const BaselineOptions& options, const std::string& package) {
  ProcessOptions process;
  process.argv = {options.program, "check", package, "--json"};
  process.inherit_env = true;
  process.cwd = options.work;
  const RunResult result = run_process(process, kCheckTimeout, kMaxOutput);
  try {
    const Json verdict = parse_json(result.out, "the Checker's answer");
    if (verdict.contains("error")) {
      return {std::nullopt, false,
              printable(json_string(verdict["error"], "message", "error"), 400)};
    }
    if (json_string(verdict, "status", "verdict") == "scored") {
      const double reward = json_number(verdict, "reward", "verdict");
      return {reward, false, "10 F = " + std::to_string(reward)};
    }
    const Json& reasons = json_member(verdict, "reasons", "verdict");
    const std::string why =
        reasons.empty() ? "no reason given" : json_string(reasons[0], "message", "reason");
    const bool refused = json_string(verdict, "status", "verdict") == "gate_failed";
    return {std::nullopt, refused, printable(why, 400)};
  } catch (const Error& error) {
    return {std::nullopt, false, result.status.text() + ": " + printable(result.err, 400)};
  }
}

/// Makes the submission a copy of `package`.
void submit(const std::string& package, const std::string& submission) {
  for (const auto& entry : fs::directory_iterator(submission)) remove_tree(entry.path().string());
  fs::copy(package, submission, fs::copy_options::recursive);
}

bool save_version(const BaselineOptions& options, const std::string& note) {
  ProcessOptions process;
  process.argv = {options.work + "/version", note};
  process.inherit_env = true;
  process.cwd = options.work;
  const RunResult result = run_process(process, kCheckTimeout);
  std::printf("%s%s", result.out.c_str(), result.err.c_str());
  return result.status.ok();
}

/// What has been reached so far.
struct Best {
  double reward = -1;    ///< the Checker's best word
  bool present = false;  ///< a submission is in place
  std::string note;      ///< what it is
  bool saved = false;    ///< as a version
};

/// One candidate on its way through pack and check; takes it over when it is the best so far.
void try_choice(const BaselineOptions& options, const PackChoice& choice, Best& best) {
  const std::string package = options.work + "/candidate";
  remove_tree(package);
  const PackReport report = pack_checkpoint(options.model, options.task, choice, package);
  std::printf("%s: %s", choice.text().c_str(), format_size(report.bytes).c_str());
  if (report.bytes > options.limit) {
    std::printf(", over the limit\n");
    return;
  }
  const Opinion opinion = check(options, package);
  std::printf(", %s\n", opinion.text.c_str());
  std::fflush(stdout);
  // Where the Checker cannot run at all, the larger package is the better guess.
  const bool better =
      opinion.reward ? *opinion.reward > best.reward + kWorthSaving : best.reward < 0;
  if (opinion.refused || !better) return;
  submit(package, options.submission);
  best.reward = opinion.reward.value_or(-1);
  best.note = choice.text() +
              (opinion.reward ? ": 10 F " + std::to_string(*opinion.reward) : ": not checked");
  best.saved = false;
  // The first that works is worth a version; later ones wait for the best.
  if (!best.present) best.saved = save_version(options, best.note);
  best.present = true;
}

std::vector<PackChoice> all_choices() {
  std::vector<PackChoice> choices;
  for (const int bits : {8, 4, 3, 2}) {
    for (const int64_t group : {32, 64, 128, 256}) {
      choices.push_back({{bits, group, bits <= 4}, 0, PackPlugin::kFast});
      if (bits < 4) choices.push_back({{bits, group, true}, 4, PackPlugin::kFast});
    }
  }
  return choices;
}

}  // namespace

std::vector<PackChoice> baseline_choices(const std::string& model, int64_t limit, size_t most) {
  std::vector<std::pair<int64_t, PackChoice>> fitting;
  for (const PackChoice& choice : all_choices()) {
    const int64_t bytes = packed_bytes(model, choice);
    if (bytes <= limit) fitting.emplace_back(bytes, choice);
  }
  std::stable_sort(fitting.begin(), fitting.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<PackChoice> choices;
  int64_t last = INT64_MAX;
  for (size_t i = 0; i < most; ++i) {
    const double room = static_cast<double>(limit) * (1 - kStep * static_cast<double>(i));
    const auto found = std::find_if(fitting.begin(), fitting.end(), [&](const auto& candidate) {
      return candidate.first < last && static_cast<double>(candidate.first) <= room;
    });
    if (found == fitting.end()) break;
    last = found->first;
    choices.push_back(found->second);
  }
  std::reverse(choices.begin(), choices.end());
  return choices;
}

int run_baseline(const BaselineOptions& options) {
  const auto choices = baseline_choices(options.model, options.limit, options.most);
  if (choices.empty()) {
    std::printf("no choice of this agent fits into %s\n", format_size(options.limit).c_str());
    return static_cast<int>(Exit::kGateFailed);
  }
  Best best;
  for (const PackChoice& choice : choices) try_choice(options, choice, best);
  remove_tree(options.work + "/candidate");
  if (best.present && !best.saved) save_version(options, best.note);
  return best.present ? 0 : static_cast<int>(Exit::kGateFailed);
}

}  // namespace cbench
