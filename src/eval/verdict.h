// The verdict of one evaluation: what was measured, which gates held, and its forms for machines,
// people and CI. Schema: docs/verdict.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "eval/audit.h"
#include "eval/decode_speed.h"
#include "eval/energy.h"
#include "eval/statistics.h"
#include "package/accountant.h"
#include "util/error.h"

namespace cbench {

enum class Mode { kCheck, kVerify };

enum class Status {
  kScored,      ///< measured, every gate holds (check: measured)
  kGateFailed,  ///< measured or refused; a gate does not hold
  kInvalid,     ///< the infrastructure failed: missing data, not a zero
};
const char* status_name(Status status);

struct Reason {
  std::string code;     ///< stable word: "package_over_limit", "engine_crashed", ...
  std::string message;  ///< for people
};

struct StageRecord {
  std::string
      name;  ///< "package", "build", "load", "likelihood", "audit", "accuracy", "decode", "storage"
  std::string status;  ///< "ok", "failed", "not_run"
  double seconds = 0;
  std::string reason;
};

struct LikelihoodResult {
  std::vector<BlockNll> blocks;
  std::vector<BlockNll> reference_blocks;
  double ppl = 0, reference_ppl = 0;
  double ln_f = 0, f = 0;
  Interval interval;  ///< of ln F
};

struct BenchmarkResult {
  std::string name;
  int64_t right = 0, total = 0;
  int64_t reference_right = 0, reference_total = 0;
  int64_t errors = 0;  ///< items that produced no answer; they count as wrong
};

struct AccuracyResult {
  std::vector<BenchmarkResult> benchmarks;
  bool gate = false;
  double mean() const;  ///< mean of the benchmarks' accuracies, in [0, 1]
  double reference_mean() const;
};

/// mean(candidate) >= num/den * mean(reference) over the benchmarks, in integers (inclusive). False
/// when there are none, a total is not positive, or a count lies outside its total.
bool passes_mean_gate(const std::vector<BenchmarkResult>& benchmarks, int64_t num, int64_t den);

struct StorageResult {
  int64_t limit = 0;
  int64_t package_bytes = 0;
  int64_t package_allocated = 0;
  int64_t resident_after_load = -1;  ///< -1: not measured
  int64_t resident_after_inference = -1;
  std::string unexplained_what;  ///< the same by kind of memory, for people
  int64_t unexplained = 0;       ///< part of the latter that nothing declared
  ArenaReport arena;
};

/// Joules of the whole GPU; idle power included.
struct EnergyResult {
  double idle_watts = 0;  ///< before the engine started
  EnergyUse scoring;      ///< tokens are those whose probability was asked for
  EnergyUse decode;
};

struct Verdict {
  Mode mode = Mode::kVerify;
  Status status = Status::kInvalid;
  std::optional<double> reward;  ///< 10 F if every gate holds, 0 if one fails, nothing when invalid
  std::vector<Reason> reasons;
  std::string task, contract_sha256;
  std::string package_sha256;
  std::string device;
  std::string box;
  std::string started_utc;
  double seconds = 0;
  int64_t parameters = 0;  ///< of the source model, for bits per parameter
  std::vector<StageRecord> stages;
  std::optional<DiskReport> disk;
  std::optional<LikelihoodResult> likelihood;
  std::optional<AuditResult> audit;
  std::optional<AccuracyResult> accuracy;
  std::optional<DecodeSpeed> decode;
  double reference_tokens_per_second = 0;
  StorageResult storage;
  std::optional<EnergyResult> energy;  ///< on a GPU

  Exit exit_code() const;
};

std::string verdict_json(const Verdict& verdict, int indent = 2);
std::string verdict_table(const Verdict& verdict);
/// JUnit XML with one test case per gate and stage.
std::string verdict_junit(const Verdict& verdict);

}  // namespace cbench
