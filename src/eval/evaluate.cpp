#include "eval/evaluate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

#include <sys/random.h>

#include "engine/build.h"
#include "eval/generation.h"
#include "eval/grading/grade.h"
#include "eval/task_data.h"
#include "model/config.h"
#include "package/package.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/progress.h"
#include "util/random.h"
#include "util/units.h"

namespace cbench {
namespace {

constexpr uint64_t kBootstrapSeed =
    20250101;                                // fixed: the interval is a function of the block sums
constexpr int64_t kBusy = int64_t{1} << 30;  // device memory of others that spoils a measurement
constexpr uint64_t kEngineMemory = uint64_t{16} << 30;
/// Names are no place for weights: paths are not counted as bytes, so there may be few of them.
constexpr uint64_t kMaxPathBytes = 64u << 10;
/// A package this many times above the limit, and more, is refused before a byte of it is read.
constexpr int64_t kFarAbove = 16;
constexpr int64_t kFarAboveBytes = int64_t{64} << 20;

std::string percent(double share) {
  const auto hundredths = static_cast<int64_t>(std::lround(share * 10000));
  const std::string rest = std::to_string(hundredths % 100);
  return std::to_string(hundredths / 100) + (rest.size() == 1 ? ".0" : ".") + rest + " %";
}

/// A task's data, read before anything of the submission is touched.
struct TaskData {
  TaskData(const Contract& contract, Mode mode)
      : config(read_config(contract)),
        vocab(parse_model_config(config, "config.json").vocab),
        blocks(read_blocks_or_explain(contract, mode, vocab)),
        reference(read_reference(contract, mode, blocks)),
        official(official_hashes(contract.checkpoint_dir())) {
    const LikelihoodProtocol& l = contract.likelihood;
    if (blocks.context != l.context_tokens || blocks.continuation != l.continuation_tokens ||
        static_cast<int64_t>(blocks.ids.size()) != l.blocks) {
      throw UsageError("blocks", blocks_path(contract, mode) +
                                     ": other blocks than the contract's likelihood protocol; make "
                                     "them anew with cbench reference");
    }
  }

  /// The reference must hold figures for exactly these items.
  void require_accuracy_of(const Contract& contract) const {
    for (const BenchmarkProtocol& protocol : contract.accuracy.benchmarks) {
      const bool known = std::any_of(
          reference.accuracy.begin(), reference.accuracy.end(), [&](const BenchmarkResult& r) {
            return r.name == protocol.name && r.reference_total == protocol.items;
          });
      if (!known) {
        throw UsageError("reference", "the reference has no figures for " +
                                          std::to_string(protocol.items) + " items of " +
                                          protocol.name + "; make it anew with cbench reference");
      }
    }
  }

  static Blocks read_blocks_or_explain(const Contract& contract, Mode mode, int64_t vocab) {
    const std::string path = blocks_path(contract, mode);
    if (!std::filesystem::exists(path)) {
      throw EnvironmentError("no_reference", path + " does not exist; run cbench reference " +
                                                 contract.name + " first");
    }
    return read_blocks(path, vocab);
  }

  std::string config;
  int64_t vocab;
  Blocks blocks;
  ReferenceFigures reference;
  std::map<std::string, std::string> official;  ///< hashes of the source model's own files
};

class Evaluation {
 public:
  Evaluation(const Contract& contract, const EvaluationOptions& options,
             std::vector<ItemRecord>* records)
      : contract_(contract),
        options_(options),
        records_(records),
        device_(options.device.empty() ? contract.hardware.device : options.device),
        data_(contract, options.mode),
        deadline_(boot_seconds() + (options.mode == Mode::kVerify ? contract.timeouts.verification
                                                                  : contract.timeouts.check)) {
    if (options.mode == Mode::kVerify) {
      tokenizer_.emplace(Tokenizer::load(contract.checkpoint_dir() + "/tokenizer.json"));
      suite_.emplace(contract, *tokenizer_);
      data_.require_accuracy_of(contract);
    }
    if (!std::filesystem::exists(std::filesystem::symlink_status(options.package))) {
      throw EnvironmentError("not_found", options.package + ": no package there");
    }
    require_box(options.box);
    if (device_ == "cuda") gpu_ = make_gpu_meter(0);
  }

  Verdict run() {
    const double started = boot_seconds();
    begin();
    stage("package", [&] { open_package(); });
    stage("build", [&] { build(); });
    stage("load", [&] { load(); });
    stage("likelihood", [&] { likelihood(); });
    if (options_.mode == Mode::kVerify) {
      stage("accuracy", [&] { accuracy(); });
    }
    stage("decode", [&] { decode(); });
    stage("storage", [&] { storage(); });
    engine_.reset();
    if (options_.mode == Mode::kVerify) stage("audit", [&] { audit(); });
    judge();
    verdict_.seconds = boot_seconds() - started;
    return std::move(verdict_);
  }

 private:
  void begin() {
    verdict_.mode = options_.mode;
    verdict_.task = contract_.name;
    verdict_.contract_sha256 = contract_.sha256;
    verdict_.box = box_kind_name(options_.box);
    verdict_.started_utc = utc_now();
    verdict_.parameters = contract_.model.parameters;
    verdict_.storage.limit = contract_.limit;
    verdict_.reference_tokens_per_second = data_.reference.tokens_per_second;
    if (!gpu_) return;
    verdict_.energy.emplace().idle_watts = gpu_->power();
    if (const int64_t busy = gpu_->use({}).others; busy > kBusy) {
      const std::string message = "other processes hold " + format_size(busy) + " of the GPU";
      if (options_.mode == Mode::kVerify) {
        throw EnvironmentError("gpu_busy", message +
                                               ": a verdict needs it alone; end them (nvidia-smi "
                                               "lists them) or choose another GPU by "
                                               "CUDA_VISIBLE_DEVICES");
      }
      spdlog::warn("{}: speed and energy are not the package's own", message);
    }
  }

  /// Runs one stage unless an earlier one ended the evaluation; records what became of it.
  void stage(const char* name, const std::function<void()>& body) {
    StageRecord record{name, "not_run", 0, stopped_by_};
    if (stopped_by_.empty()) {
      const double started = boot_seconds();
      try {
        if (boot_seconds() > deadline_) {
          throw Error(Exit::kGateFailed, "time_limit", "the evaluation's time limit is used up");
        }
        body();
        record.status = "ok";
      } catch (const Error& error) {
        record.status = "failed";
        record.reason = error.what();
        stop(name, error);
      } catch (const std::exception& error) {
        record.status = "failed";
        record.reason = error.what();
        stop(name, InvalidError("internal", error.what()));
      }
      record.seconds = boot_seconds() - started;
    }
    verdict_.stages.push_back(record);
  }

  void stop(const std::string& name, const Error& error) {
    stopped_by_ = "stage " + name + " failed: " + error.code();
    // A package that cannot be read is refused; every other bad input, and what the engine's client
    // does not put down to the submission, is ours.
    const bool unreadable = name == "package" && error.exit() == Exit::kUsage;
    const bool changed = error.code() == "changed" || package_changed();
    invalid_ |= error.exit() != Exit::kGateFailed && !unreadable && !changed;
    verdict_.reasons.push_back(
        {changed ? "package_changed" : error.code(),
         changed ? std::string("the package changed while it was measured: ") + error.what()
                 : error.what()});
  }

  bool package_changed() const {
    if (!package_) return false;
    try {
      package_->tree().check_unchanged();
      return false;
    } catch (const Error&) {
      return true;
    }
  }

  void open_package() {
    PackageOptions package_options;
    package_options.official_sha256 = data_.official;
    package_options.limits.max_path_bytes = kMaxPathBytes;
    account(PackageTree::walk(options_.package, package_options.limits));
    package_.emplace(Package::open(options_.package, package_options));
    verdict_.package_sha256 = package_->hash();
    account(package_->tree());
    if (verdict_.disk->over) gate("package_over_limit", verdict_.disk->explanation);
  }

  void account(const PackageTree& tree) {
    verdict_.disk = account_disk(tree, static_cast<uint64_t>(contract_.limit));
    verdict_.storage.package_bytes = static_cast<int64_t>(verdict_.disk->bytes);
    verdict_.storage.package_allocated = static_cast<int64_t>(verdict_.disk->allocated);
    if (verdict_.storage.package_bytes / kFarAbove > contract_.limit &&
        verdict_.storage.package_bytes - contract_.limit > kFarAboveBytes) {
      throw Error(Exit::kGateFailed, "package_over_limit",
                  verdict_.disk->explanation + "; that is too far above to measure anything else");
    }
  }

  void build() {
    PluginBuildOptions build_options;
    build_options.box = options_.box;
    build_options.device = device_;
    build_options.timeout =
        std::min(contract_.timeouts.build, std::max(1.0, deadline_ - boot_seconds()));
    plugin_ = build_plugin(options_.package, package_->manifest(), work_.path(), build_options);
  }

  EngineOptions engine_options() const {
    EngineOptions engine;
    engine.program = options_.program;
    engine.package = options_.package;
    engine.plugin = plugin_;
    engine.config = data_.config;
    engine.box = options_.box;
    engine.device = device_;
    engine.capacity = capacity_for(contract_, device_, data_.vocab, suite_ ? suite_->longest() : 0,
                                   suite_ ? suite_->items() : 0);
    engine.load_timeout = contract_.timeouts.load;
    engine.reply_timeout = contract_.timeouts.reply;
    engine.deadline = deadline_;
    engine.memory = device_ == "cpu" ? kEngineMemory : 0;
    return engine;
  }

  void load() {
    engine_ = std::make_unique<Engine>(engine_options());
    verdict_.device = engine_->device_name();
    verdict_.storage.resident_after_load = engine_->memory().resident();
  }

  void likelihood() {
    const auto tokens = static_cast<double>(data_.blocks.ids.size()) *
                        static_cast<double>(data_.blocks.continuation);
    Progress progress("likelihood", tokens, "tokens", options_.quiet);
    LikelihoodResult result;
    EnergyMeter energy(gpu_.get());
    energy.start();
    scored_ = score_all_blocks(*engine_, data_.blocks, [&](double done) { progress.update(done); });
    energy.stop(static_cast<int64_t>(tokens));
    if (verdict_.energy) verdict_.energy->scoring = energy.use();
    for (const auto& scores : scored_) result.blocks.push_back(sum_nll(scores));
    progress.finish();
    result.reference_blocks = data_.reference.blocks;
    result.ppl = perplexity(result.blocks);
    result.reference_ppl = perplexity(result.reference_blocks);
    result.ln_f = log_f(result.reference_blocks, result.blocks);
    result.f = std::exp(result.ln_f);
    result.interval = bootstrap_log_f(result.reference_blocks, result.blocks, kBootstrapSeed);
    if (!std::isfinite(result.ppl) || !std::isfinite(result.f)) {
      throw Error(Exit::kGateFailed, "non_finite_likelihood",
                  "the perplexity is not a finite number");
    }
    verdict_.likelihood = std::move(result);
  }

  void accuracy() {
    Progress progress("answers", static_cast<double>(suite_->items()), "items", options_.quiet);
    AccuracyResult result;
    result.benchmarks =
        suite_->run(*engine_, read_eos_ids(contract_.checkpoint_dir()), options_.box, records_,
                    [&](double done) { progress.update(done); });
    progress.finish();
    for (BenchmarkResult& b : result.benchmarks) {
      for (const BenchmarkResult& r : data_.reference.accuracy) {
        if (r.name != b.name) continue;
        b.reference_right = r.reference_right;
        b.reference_total = r.reference_total;
      }
    }
    const AccuracyProtocol& protocol = contract_.accuracy;
    result.gate =
        passes_mean_gate(result.benchmarks, protocol.retain_numerator, protocol.retain_denominator);
    if (!result.gate) {
      gate("accuracy", "the mean accuracy is " + percent(result.mean()) + "; the gate wants " +
                           std::to_string(protocol.retain_numerator) + "/" +
                           std::to_string(protocol.retain_denominator) + " of BF16's " +
                           percent(result.reference_mean()));
    }
    verdict_.accuracy = std::move(result);
  }

  void audit() {
    Engine fresh(engine_options());
    verdict_.audit = audit_causality(fresh, data_.blocks, scored_, contract_.audit, random_seed());
    if (!verdict_.audit->passed) gate("causality", verdict_.audit->reason);
  }

  void decode() {
    const auto prompts = fresh_prompts(data_.blocks, decode_prompts(contract_.decode),
                                       contract_.decode.prompt_tokens, random_seed());
    verdict_.decode = measure_decode_speed(*engine_, contract_.decode, prompts);
    if (verdict_.energy) verdict_.energy->decode = verdict_.decode->energy;
    if (!verdict_.decode->tokens_plausible) {
      gate("decode_tokens", "the tokens of the timed decoding are not what the logits say");
    }
  }

  void storage() {
    const EngineMemory memory = engine_->memory();
    StorageResult& s = verdict_.storage;
    s.arena = memory.arena;
    s.unexplained = memory.unexplained();
    s.unexplained_what = memory.explain();
    s.resident_after_inference = memory.resident();
    const int64_t resident = std::max(s.resident_after_load, s.resident_after_inference);
    if (resident > s.limit) {
      gate("resident_over_limit",
           "resident model storage is " + format_size(resident) + " of " + format_size(s.limit) +
               ": over by " + format_size(resident - s.limit) +
               (s.unexplained > 0 ? ", of which " + format_size(s.unexplained) +
                                        " was never declared (" + s.unexplained_what + ")"
                                  : ""));
    }
    engine_->close();
    package_->tree().check_unchanged();
  }

  void gate(const std::string& code, const std::string& message) {
    verdict_.reasons.push_back({code, message});
  }

  void judge() {
    if (invalid_) {
      verdict_.status = Status::kInvalid;
    } else if (!verdict_.reasons.empty()) {
      verdict_.status = Status::kGateFailed;
      verdict_.reward = 0;
    } else {
      verdict_.status = Status::kScored;
      verdict_.reward = 10 * verdict_.likelihood->f;
    }
  }

  const Contract& contract_;
  const EvaluationOptions& options_;
  std::vector<ItemRecord>* records_;
  std::string device_;
  TaskData data_;
  double deadline_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<AccuracySuite> suite_;
  TempDir work_{"cbench-eval"};
  std::optional<Package> package_;
  std::string plugin_;
  std::unique_ptr<GpuMeter> gpu_;  ///< null on the CPU
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<RowScore>> scored_;  ///< of every block: what the likelihood is made of
  Verdict verdict_;
  std::string stopped_by_;
  bool invalid_ = false;
};

}  // namespace

Capacity capacity_for(const Contract& contract, const std::string& device, int64_t vocab,
                      int64_t longest, int64_t items) {
  const LikelihoodProtocol& l = contract.likelihood;
  const int64_t block = l.context_tokens + l.continuation_tokens;
  const int64_t request = contract.decode.prompt_tokens + contract.decode.new_tokens;
  Capacity capacity;
  capacity.max_length = std::max({block, request, longest});
  const bool cuda = device == "cuda";
  capacity.tokens = std::max<int64_t>(cuda ? 16384 : 2048, capacity.max_length);
  capacity.slots = std::clamp<int64_t>(items, 16, cuda ? 160 : 64);
  capacity.sequences = capacity.slots;
  const int64_t logits_bytes = int64_t{cuda ? 1024 : 8} << 20;
  capacity.logits_rows = std::clamp<int64_t>(logits_bytes / (4 * vocab), 1, capacity.tokens);
  // Whole tiles of the head's product.
  if (cuda && capacity.logits_rows > 256) capacity.logits_rows -= capacity.logits_rows % 256;
  return capacity;
}

std::vector<std::vector<int32_t>> fresh_prompts(const Blocks& blocks, int64_t count, int64_t tokens,
                                                uint64_t seed) {
  std::vector<int32_t> text;
  for (const auto& block : blocks.ids) text.insert(text.end(), block.begin(), block.end());
  if (static_cast<int64_t>(text.size()) < tokens) {
    throw UsageError("blocks", "the blocks hold fewer tokens than one decode prompt needs");
  }
  Random random(seed);
  std::vector<std::vector<int32_t>> prompts;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t at = random.below(text.size() - static_cast<uint64_t>(tokens) + 1);
    const auto from = text.begin() + static_cast<std::ptrdiff_t>(at);
    prompts.emplace_back(from, from + tokens);
  }
  return prompts;
}

uint64_t random_seed() {
  uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) != sizeof seed) throw_errno("getrandom", "seed");
  return seed;
}

Verdict evaluate(const Contract& contract, const EvaluationOptions& options,
                 std::vector<ItemRecord>* records) {
  return Evaluation(contract, options, records).run();
}

}  // namespace cbench
