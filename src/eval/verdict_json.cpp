// The verdict as JSON, schema cbench.verdict.v1 (docs/verdict.md). Non-finite numbers become null.
#include <cmath>

#include "eval/verdict.h"
#include "util/json.h"

namespace cbench {
namespace {

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }
Json measured(int64_t value) { return value >= 0 ? Json(value) : Json(); }

Json likelihood_json(const LikelihoodResult& r) {
  Json nll = Json::array();
  int64_t tokens = 0;
  for (const BlockNll& block : r.blocks) {
    nll.push_back(number(block.sum));
    tokens += block.tokens;
  }
  return {{"ppl", number(r.ppl)},
          {"reference_ppl", number(r.reference_ppl)},
          {"ln_f", number(r.ln_f)},
          {"f", number(r.f)},
          {"interval", {number(r.interval.low), number(r.interval.high)}},
          {"blocks", r.blocks.size()},
          {"tokens", tokens},
          {"block_nll", nll}};
}

Json accuracy_json(const AccuracyResult& r) {
  Json benchmarks = Json::object();
  for (const BenchmarkResult& b : r.benchmarks) {
    benchmarks[b.name] = {{"right", b.right},
                          {"total", b.total},
                          {"errors", b.errors},
                          {"reference_right", b.reference_right},
                          {"reference_total", b.reference_total}};
  }
  return {{"mean", number(r.mean())},
          {"reference_mean", number(r.reference_mean())},
          {"gate", r.gate},
          {"benchmarks", benchmarks}};
}

Json disk_json(const DiskReport& r) {
  Json classes = Json::object();
  for (size_t i = 0; i < kFileClasses; ++i) {
    classes[file_class_name(static_cast<FileClass>(i))] = {{"bytes", r.classes[i].bytes},
                                                           {"files", r.classes[i].files}};
  }
  return classes;
}

Json storage_json(const StorageResult& r) {
  Json arena = Json::object();
  for (int i = 0; i < kCategories; ++i) {
    arena[category_name(static_cast<Category>(i))] = r.arena.live[static_cast<size_t>(i)];
  }
  return {{"limit", r.limit},
          {"package_bytes", r.package_bytes},
          {"package_allocated", r.package_allocated},
          {"resident_after_load", measured(r.resident_after_load)},
          {"resident_after_inference", measured(r.resident_after_inference)},
          {"unexplained", r.unexplained},
          {"arena", arena}};
}

Json decode_json(const DecodeSpeed& r, double reference) {
  Json rounds = Json::array();
  for (const double seconds : r.round_seconds) rounds.push_back(number(seconds));
  return {{"tokens_per_second", number(r.tokens_per_second)},
          {"reference_tokens_per_second", reference > 0 ? Json(reference) : Json()},
          {"round_seconds", rounds},
          {"first_token_seconds", number(r.prefill_seconds)},
          {"agreement", number(r.agreement)},
          {"mean_gap", number(r.mean_gap)}};
}

Json energy_json(const EnergyUse& use) {
  if (use.tokens == 0) return Json();
  return {{"joules_per_token", number(use.per_token())},
          {"joules", number(use.joules)},
          {"seconds", number(use.seconds)},
          {"tokens", use.tokens},
          {"long_enough", use.long_enough()}};
}

Json audit_json(const AuditResult& r) {
  return {{"passed", r.passed},
          {"reason", r.reason},
          {"seed", r.seed},
          {"stepwise_tokens", r.stepwise_tokens},
          {"stepwise_excess", number(r.stepwise_excess)},
          {"stepwise_max", number(r.stepwise_max)},
          {"suffix_tokens", r.suffix_tokens},
          {"suffix_max", number(r.suffix_max)}};
}

}  // namespace

std::string verdict_json(const Verdict& v, int indent) {
  Json reasons = Json::array();
  for (const Reason& r : v.reasons) reasons.push_back({{"code", r.code}, {"message", r.message}});
  Json stages = Json::array();
  for (const StageRecord& s : v.stages) {
    stages.push_back({{"name", s.name},
                      {"status", s.status},
                      {"seconds", number(s.seconds)},
                      {"reason", s.reason}});
  }
  Json json = {
      {"schema", "cbench.verdict.v1"},
      {"mode", v.mode == Mode::kCheck ? "check" : "verify"},
      {"status", status_name(v.status)},
      {"reward", v.reward ? number(*v.reward) : Json()},
      {"reasons", reasons},
      {"task", v.task},
      {"contract_sha256", v.contract_sha256},
      {"started_utc", v.started_utc},
      {"seconds", number(v.seconds)},
      {"cbench_version", CBENCH_VERSION},
      {"device", v.device},
      {"box", v.box},
      {"package",
       {{"sha256", v.package_sha256},
        {"bytes", v.storage.package_bytes},
        {"allocated", v.storage.package_allocated},
        {"classes", v.disk ? disk_json(*v.disk) : Json()}}},
      {"bits_per_parameter", v.parameters > 0
                                 ? number(8.0 * static_cast<double>(v.storage.package_bytes) /
                                          static_cast<double>(v.parameters))
                                 : Json()},
      {"likelihood", v.likelihood ? likelihood_json(*v.likelihood) : Json()},
      {"accuracy", v.accuracy ? accuracy_json(*v.accuracy) : Json()},
      {"storage", storage_json(v.storage)},
      {"decode", v.decode ? decode_json(*v.decode, v.reference_tokens_per_second) : Json()},
      {"energy", v.energy ? Json{{"idle_watts", number(v.energy->idle_watts)},
                                 {"scoring", energy_json(v.energy->scoring)},
                                 {"decode", energy_json(v.energy->decode)}}
                          : Json()},
      {"integrity", v.audit ? audit_json(*v.audit) : Json()},
      {"stages", stages}};
  return dump_json(json, indent) + "\n";
}

}  // namespace cbench
