// The stages of a run after the freeze: verification of everything that was saved, and the records.
#include <filesystem>

#include <poll.h>

#include "run/driver.h"
#include "run/summary.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {
constexpr double kVerifyGrace = 120;  // seconds beyond the verifier's own limits
}  // namespace

VerifyStage Driver::verify_stage() const {
  VerifyStage stage;
  stage.command = options_.verify_command;
  if (stage.command.empty()) {
    stage.command = {options_.program, "--tasks", contract_.tasks_root, "verify"};
  }
  if (box_ != BoxKind::kBwrap) stage.box = box_kind_name(box_);
  const TimeoutSpec& t = contract_.timeouts;
  stage.timeout = t.verification + t.build + t.load + kVerifyGrace;
  stage.interrupt_fd = options_.interrupt_fd;
  return stage;
}

/// A valid verdict on exactly this is there; an invalid one is measured again.
bool Driver::verified(const std::string& name, const std::string& key) const {
  const auto found = state_.verdicts.find(name);
  std::error_code error;
  return found != state_.verdicts.end() && found->second.status != "invalid" &&
         found->second.key == key &&
         fs::is_regular_file(run_.verdicts() + "/" + name + ".json", error);
}

std::string Driver::same_package(const std::string& key) const {
  for (const auto& [name, record] : state_.verdicts) {
    if (record.taken_from.empty() && verified(name, key)) return name;
  }
  return "";
}

void Driver::verify() {
  std::vector<VerifyTarget> targets = {{"final", run_.path, state_.frozen->package_hash}};
  for (const auto& [number, version] : state_.versions) {
    const std::string name = "v" + std::to_string(number);
    targets.push_back({name, run_.versions() + "/" + name, version.package_hash});
  }
  if (state_.stage == "frozen") {
    note("verifying", dump_json({{"targets", targets.size()}}));
  }
  progress_ = std::make_unique<Progress>("verifying", static_cast<double>(targets.size()),
                                         "packages", options_.quiet);
  for (size_t i = 0; i < targets.size() && !interrupted_; ++i) {
    show_verify(i, targets.size());
    verify_one(targets[i]);
  }
  if (!interrupted_) show_verify(targets.size(), targets.size());
  progress_.reset();
}

void Driver::verify_one(const VerifyTarget& target) {
  if (target.name == "final" && !state_.frozen->code.empty()) {
    if (state_.verdicts.contains("final")) return;
    const FrozenRecord& frozen = *state_.frozen;
    return record_verdict(
        "final", "", verdict_without_measurement(contract_, true, frozen.code, frozen.message), "");
  }
  const std::string key = verdict_key(contract_, target.package_hash);
  if (verified(target.name, key)) return;
  if (const std::string same = same_package(key); !same.empty()) {
    const VerdictRecord& record = state_.verdicts.at(same);
    const VerifyResult taken{read_file(run_.verdicts() + "/" + same + ".json"), record.status,
                             record.reward};
    return record_verdict(target.name, key, taken, same);
  }
  const VerifyResult result = run_verify(verify_stage(), target, run_, contract_);
  if (result.verdict.empty()) {
    interrupted_ = true;
  } else {
    record_verdict(target.name, key, result, "");
  }
}

/// The file is durable before the journal says that it is there.
void Driver::record_verdict(const std::string& name, const std::string& key,
                            const VerifyResult& result, const std::string& taken_from) {
  write_file_atomic(run_.verdicts() + "/" + name + ".json", result.verdict);
  Json fields = {{"of", name}, {"status", result.status}, {"key", key}};
  fields["reward"] = result.reward ? Json(*result.reward) : Json();
  if (!taken_from.empty()) fields["taken_from"] = taken_from;
  note("verdict", dump_json(fields));
}

void Driver::show_verify(size_t done, size_t total) {
  const std::string best = best_version(state_);
  const std::string words = best.empty() ? ""
                                         : "best so far " + best + ", " +
                                               std::to_string(*state_.verdicts.at(best).reward);
  if (done == total) {
    progress_->finish(words);
  } else {
    progress_->update(static_cast<double>(done), words);
  }
}

RunOutcome Driver::finish() {
  const VerdictRecord& verdict = state_.verdicts.at("final");
  RunOutcome outcome;
  outcome.state = "done";
  outcome.status = verdict.status;
  outcome.reward = verdict.reward;
  outcome.best_version = best_version(state_);
  outcome.exit_code = static_cast<int>(verdict.status == "scored"        ? Exit::kOk
                                       : verdict.status == "gate_failed" ? Exit::kGateFailed
                                                                         : Exit::kInvalid);
  if (state_.stage != "done") {
    note("done", dump_json({{"status", outcome.status},
                            {"reward", outcome.reward ? Json(*outcome.reward) : Json()},
                            {"best_version", outcome.best_version}}));
  }
  write_file_atomic(run_.file("METRICS.json"), metrics_json(run_, state_));
  write_file_atomic(run_.file("SUMMARY.json"), summary_json(run_, state_));
  return outcome;
}

}  // namespace cbench
