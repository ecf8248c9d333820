// The contract of a task: contract.yaml, loaded strictly into a typed, frozen form.
//
// Unknown keys, duplicate keys, wrong types, YAML 1.1 surprises (012, yes, .nan), tabs, missing units
// and out-of-range values are errors that name file, line, key and what was expected.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cbench {

struct ModelSpec {
  std::string name;          ///< "Qwen3.8-27B"
  std::string repository;    ///< "Qwen/Qwen3.8-27B", or a directory relative to tasks/ for shipped ones
  std::string revision;      ///< branch, tag or commit; resolved in lock.json. "" for shipped models
  std::string architecture;  ///< "qwen3_5", ...
  int64_t parameters = 0;
  bool shipped = false;      ///< the checkpoint is part of the repository
};

struct HardwareSpec {
  std::string device;     ///< "cpu" or "cuda"
  std::string gpu;        ///< "NVIDIA H200 NVL"; "" on the CPU
  int64_t gpus = 0;
  int64_t gpu_memory = 0;  ///< bytes the task expects at least
};

/// Likelihood: blocks of context + continuation tokens; the continuation was sampled by the BF16 model.
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

/// Batch-one decoding: speed = (new_tokens - 1) / L, L the median over rounds of the round's mean time
/// from the first to the last token of a request.
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

/// Files of the task, relative to tasks/ (shipped) or to the task's data directory (fetched).
struct DataSpec {
  std::string root;          ///< directory that holds the files below
  std::string items;         ///< hidden items: <items>/<benchmark>.jsonl
  std::string shots;         ///< <shots>/<benchmark>.jsonl
  std::string documents;     ///< <documents>/{search,verification}.jsonl
  std::string reference;     ///< directory of reference.json and blocks (cbench reference)
  std::string visible;       ///< what the agent may see
};

/// One thing `cbench fetch` brings.
struct FetchItem {
  std::string kind;  ///< "hub", "url", "rows", "dolma", "paper"
  std::string name;  ///< folder or file under the data root
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
  std::string name;   ///< the task's directory name
  std::string title;
  std::string path;   ///< contract.yaml it came from
  std::string text;   ///< the exact bytes (after includes), for the frozen copy
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

  std::string tasks_root;                     ///< directory of all tasks
  std::string checkpoint_dir() const;         ///< absolute path of the BF16 checkpoint
  std::string data_path(const std::string& relative) const;  ///< absolute path under data.root
};

/// Parses and validates one contract. Throws UsageError ("contract_*").
Contract load_contract(const std::string& path);

/// Finds a task by name (or by the path of its directory or contract.yaml). Throws UsageError
/// ("unknown_task") that suggests the nearest name. The tasks' directory is `tasks_root`, or "" for
/// the default search (see default_tasks_root).
Contract find_task(const std::string& name_or_path, const std::string& tasks_root = "");

/// --tasks option, else ./tasks, else the tasks directory beside the binary's installation or source.
std::string default_tasks_root();

/// Names of all tasks, sorted.
std::vector<std::string> list_tasks(const std::string& tasks_root);

}  // namespace cbench
