// The contract of a task: contract.yaml, loaded strictly into a typed, frozen form.
//
// Unknown keys, duplicate keys, wrong types, YAML 1.1 surprises (012, yes, .nan), tabs, missing
// units and out-of-range values are errors that name file, line, key and what was expected.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cbench {

struct ModelSpec {
  std::string name;  ///< "Qwen3.8-27B"
  std::string
      repository;        ///< "Qwen/Qwen3.8-27B", or a directory relative to tasks/ for shipped ones
  std::string revision;  ///< branch, tag or commit; resolved in lock.json. "" for shipped models
  std::string architecture;  ///< "qwen3_5", ...
  int64_t parameters = 0;
  bool shipped = false;  ///< the checkpoint is part of the repository
};

struct HardwareSpec {
  std::string device;  ///< "cpu" or "cuda"
  std::string gpu;     ///< "NVIDIA H200 NVL"; "" on the CPU
  int64_t gpus = 0;
  int64_t gpu_memory = 0;  ///< bytes the task expects at least
};

/// Likelihood: blocks of context + continuation tokens; the continuation was sampled by the BF16
/// model.
struct LikelihoodProtocol {
  int64_t blocks = 0;
  int64_t context_tokens = 0;
  int64_t continuation_tokens = 0;
  double temperature = 1;
  uint64_t seed = 0;
  std::vector<std::string> sources;  ///< strata of the documents
};

struct BenchmarkProtocol {
  std::string name;  ///< "gsm8k", "humaneval", "triviaqa"
  int64_t items = 0;
  int64_t shots = 0;
  int64_t max_tokens = 0;
};

struct AccuracyProtocol {
  std::vector<BenchmarkProtocol> benchmarks;
  /// The candidate's mean must reach retain_numerator / retain_denominator of the reference's mean.
  int64_t retain_numerator = 4;
  int64_t retain_denominator = 5;
};

/// Batch-one decoding: speed = (new_tokens - 1) / L, L the median over rounds of the round's mean
/// time from the first to the last token of a request.
struct DecodeProtocol {
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;
  int64_t warmup_requests = 0;
  int64_t rounds = 0;
  int64_t requests_per_round = 0;
};

/// Causality audit: blocks fed one token at a time, and blocks with a swapped suffix.
struct AuditProtocol {
  int64_t stepwise_blocks = 0;
  int64_t stepwise_tokens = 0;  ///< tokens of each that are compared
  int64_t suffix_blocks = 0;
  double tolerance = 0;  ///< largest accepted difference of a log-probability, in nats
};

struct TimeoutSpec {
  double verification = 0;  ///< seconds for a whole verify
  double check = 0;         ///< seconds for a whole check
  double build = 0;         ///< compiling a package's sources
  double load = 0;          ///< engine start to ready
  double reply = 0;         ///< one engine reply
};

/// Files of the task. Tasks on the same model share one root, and with it checkpoint and reference.
struct DataSpec {
  std::string root;       ///< directory that holds the files below, relative to tasks/
  std::string items;      ///< hidden items: <items>/<benchmark>.jsonl
  std::string shots;      ///< <shots>/<benchmark>.jsonl
  std::string documents;  ///< <documents>/{search,verification}.jsonl
  std::string reference;  ///< directory of reference.json and blocks (cbench reference)
  std::string visible;    ///< what the agent may see
};

/// One thing `cbench fetch` brings. The checkpoint of a task that is not shipped is always the
/// first item ({kind "hub", type "model", name "checkpoint", visible}); contract.yaml does not list
/// it. What each kind needs: hub: repository, type (model, dataset), [revision, include]; url: url,
/// [sha256]; rows (datasets-server): repository, config, split, count, [revision, seed]; dolma:
/// repository, count, [revision, include, seed]; paper: url, title.
struct FetchItem {
  std::string kind;  ///< "hub", "url", "rows", "dolma", "paper"
  std::string name;  ///< path under the data root, unique in the task
  std::string repository, type, revision, config, split, url, sha256, title;
  std::vector<std::string> include;
  int64_t count = 0;
  uint64_t seed = 0;
  bool visible = false;  ///< mounted in the agent's box
};

/// Published figures of the BF16 model, for orientation only.
struct PublishedReference {
  double search_ppl = 0, verification_ppl = 0, accuracy_percent = 0;  ///< 0 = none published
};

struct Contract {
  int64_t schema = 1;
  std::string name;  ///< the task's directory name
  std::string title;
  std::string path;  ///< contract.yaml it came from
  std::string text;  ///< canonical form with everything merged: the frozen copy, loadable by itself
  std::string sha256;  ///< of `text`
  ModelSpec model;
  int64_t limit = 0;  ///< C in bytes, for the package and for what stays resident
  HardwareSpec hardware;
  double budget = 0;  ///< T in seconds
  LikelihoodProtocol likelihood;
  AccuracyProtocol accuracy;
  DecodeProtocol decode;
  AuditProtocol audit;
  TimeoutSpec timeouts;
  DataSpec data;
  std::vector<FetchItem> fetch;
  PublishedReference published;
  std::string image;  ///< container image by digest, "" for none

  std::string tasks_root;  ///< directory of all tasks
  /// Absolute path of the BF16 checkpoint: tasks/<repository> when shipped, else <data>/checkpoint.
  std::string checkpoint_dir() const;
  /// Absolute path of `relative` under data.root ("" for the root itself).
  std::string data_path(const std::string& relative) const;
};

/// Parses and validates one contract. `tasks_root` is the directory that data and shipped models
/// are relative to; "" for the grandparent of `path` (tasks/<name>/contract.yaml). A frozen copy
/// that lies elsewhere (in a run directory) needs it given. Throws UsageError ("contract_*").
Contract load_contract(const std::string& path, const std::string& tasks_root = "");

/// The canonical YAML of a contract (what `text` holds): every value, no include.
std::string render_contract(const Contract& contract);

/// The same as one JSON object, sizes in bytes and durations in seconds, for --json outputs.
std::string contract_json(const Contract& contract);

/// One field in which two contracts differ, e.g. {"decode.rounds", "3", "5"}; "" where absent.
struct ContractDifference {
  std::string key, left, right;
};
std::vector<ContractDifference> diff_contracts(const Contract& left, const Contract& right);

/// Finds a task by name (or by the path of its directory or contract.yaml). Throws UsageError
/// ("unknown_task") that suggests the nearest name. The tasks' directory is `tasks_root`, or "" for
/// default_tasks_root().
Contract find_task(const std::string& name_or_path, const std::string& tasks_root = "");

/// What set_tasks_root() was given (the global option --tasks), else ./tasks, else the tasks
/// directory beside the binary's installation or source. Throws UsageError ("no_tasks").
std::string default_tasks_root();
void set_tasks_root(const std::string& directory);

/// Names of all tasks, sorted.
std::vector<std::string> list_tasks(const std::string& tasks_root);

}  // namespace cbench
