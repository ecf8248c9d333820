#include "eval/evaluate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>

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
constexpr int64_t kBusy = int64_t{1} << 30;  // device memory of others that is worth a word
constexpr uint64_t kEngineMemory = uint64_t{16} << 30;

/// A task's data, read before anything of the submission is touched.
struct TaskData {
  TaskData(const Contract& contract, Mode mode)
      : config(read_config(contract)),
        vocab(parse_model_config(config, "config.json").vocab),
        blocks(read_blocks_or_explain(contract, mode, vocab)),
        reference(read_reference(contract, mode, blocks)) {}

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
      stage("audit", [&] { audit(); });
    }
    stage("decode", [&] { decode(); });
    stage("storage", [&] { storage(); });
    engine_.reset();
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
      spdlog::warn("other processes hold {} of the GPU: speed and energy are not the package's own",
                   format_size(busy));
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
    // Without a plugin nothing of the engine is the submission's code, so a crash there is ours.
    const bool ours = error.code().starts_with("engine_") && !has_plugin_;
    // A package that cannot be read is refused; the rest of the input is ours and already read.
    const bool refused = error.exit() == Exit::kUsage || error.exit() == Exit::kGateFailed;
    invalid_ |= ours || !refused;
    verdict_.reasons.push_back({error.code(), error.what()});
  }

  void open_package() {
    PackageOptions package_options;
    package_options.official_sha256 = official_hashes(contract_.checkpoint_dir());
    package_.emplace(Package::open(options_.package, package_options));
    has_plugin_ = package_->manifest().plugin.present();
    verdict_.package_sha256 = package_->hash();
    verdict_.disk = account_disk(package_->tree(), static_cast<uint64_t>(contract_.limit));
    verdict_.storage.package_bytes = static_cast<int64_t>(verdict_.disk->bytes);
    verdict_.storage.package_allocated = static_cast<int64_t>(verdict_.disk->allocated);
    if (verdict_.disk->over) gate("package_over_limit", verdict_.disk->explanation);
  }

  void build() {
    PluginBuildOptions build_options;
    build_options.box = options_.box;
    build_options.device = device_;
    build_options.timeout = contract_.timeouts.build;
    plugin_ = build_plugin(options_.package, package_->manifest(), work_.path(), build_options);
  }

  void load() {
    EngineOptions engine;
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
    engine_ = std::make_unique<Engine>(engine);
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
    result.blocks =
        measure_likelihood(*engine_, data_.blocks, [&](double done) { progress.update(done); });
    energy.stop(static_cast<int64_t>(tokens));
    if (verdict_.energy) verdict_.energy->scoring = energy.use();
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
    int64_t right = 0, total = 0, reference_right = 0, reference_total = 0;
    for (BenchmarkResult& b : result.benchmarks) {
      for (const BenchmarkResult& r : data_.reference.accuracy) {
        if (r.name != b.name) continue;
        b.reference_right = r.reference_right;
        b.reference_total = r.reference_total;
      }
      if (b.reference_total != b.total) {
        throw UsageError("reference", "the reference has no figures for these " + b.name +
                                          " items; make it anew with cbench reference");
      }
      right += b.right;
      total += b.total;
      reference_right += b.reference_right;
      reference_total += b.reference_total;
    }
    // Every benchmark has the same number of items, so the means compare as counts do.
    result.gate =
        passes_gate(right, total, reference_right, reference_total,
                    contract_.accuracy.retain_numerator, contract_.accuracy.retain_denominator);
    if (!result.gate) {
      gate("accuracy", std::to_string(right) + " of " + std::to_string(total) +
                           " answers are right; the gate wants " +
                           std::to_string(contract_.accuracy.retain_numerator) + "/" +
                           std::to_string(contract_.accuracy.retain_denominator) + " of BF16's " +
                           std::to_string(reference_right));
    }
    verdict_.accuracy = std::move(result);
  }

  void audit() {
    verdict_.audit = audit_causality(*engine_, data_.blocks, contract_.audit, random_seed());
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
  Verdict verdict_;
  std::string stopped_by_;
  bool has_plugin_ = false;
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
