#include "eval/evaluator_bench.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "eval/evaluate.h"
#include "eval/generation.h"
#include "eval/likelihood.h"
#include "runtime/bench.h"
#include "runtime/synthetic_source.h"
#include "util/clock.h"
#include "util/random.h"

namespace cbench {
namespace {

constexpr uint64_t kSeed = 11;

std::vector<int32_t> random_ids(Random& random, int64_t count, int64_t vocab) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab)));
  return ids;
}

/// A tokenizer that knows every id and nothing else.
Tokenizer plain_tokenizer(int64_t vocab) {
  std::string json =
      R"({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,)"
      R"( "post_processor": null, "decoder": null, "model": {"type": "BPE", "merges": [], "vocab": {)";
  for (int64_t id = 0; id < vocab; ++id) {
    const std::string number = std::to_string(id);
    json += (id == 0 ? "\"t" : ", \"t") + number + "\": " + number;
  }
  return Tokenizer::load_bytes(json + "}}}", "synthetic tokenizer");
}

/// Prompts and budgets of the suite's kinds: long ones with examples, programs, short answers.
std::vector<GenerationRequest> requests(const EvaluatorBenchOptions& options, int64_t vocab) {
  Random random(kSeed);
  std::vector<GenerationRequest> out;
  for (int64_t i = 0; i < options.items; ++i) {
    const int64_t kind = i * 3 / std::max<int64_t>(1, options.items);
    const int64_t length = kind == 0 ? 700 : kind == 1 ? 160 : 130;
    const int64_t budget = options.answer_tokens;
    GenerationRequest request;
    request.prompt = random_ids(
        random, length / 2 + static_cast<int64_t>(random.below(static_cast<uint64_t>(length))),
        vocab);
    request.max_tokens = kind == 0 ? budget * 5 / 6 : kind == 1 ? budget : budget / 16;
    request.max_tokens = std::max<int64_t>(1, request.max_tokens);
    out.push_back(std::move(request));
  }
  return out;
}

class EvaluatorBench {
 public:
  explicit EvaluatorBench(const EvaluatorBenchOptions& options)
      : config_(parse_model_config(options.config, "config.json")) {
    report_.options = options;
    contract_.likelihood.context_tokens = options.context;
    contract_.likelihood.continuation_tokens = options.continuation;
    contract_.decode = {.prompt_tokens = options.context + options.continuation,
                        .new_tokens = 128,
                        .warmup_requests = 1,
                        .rounds = 3,
                        .requests_per_round = 3};
    contract_.audit = {.stepwise_blocks = 4, .stepwise_tokens = 64, .suffix_blocks = 4};
    contract_.audit.tolerance = 0.5;
    Random random(kSeed + 1);
    blocks_.context = options.context;
    blocks_.continuation = options.continuation;
    for (int64_t i = 0; i < options.blocks; ++i) {
      blocks_.ids.push_back(random_ids(random, blocks_.length(), config_.vocab));
    }
    requests_ = requests(options, config_.vocab);
    for (const GenerationRequest& r : requests_) {
      longest_ = std::max(longest_, static_cast<int64_t>(r.prompt.size()) + r.max_tokens);
    }
    capacity_ = capacity_for(contract_, options.device, config_.vocab, longest_, options.items);
  }

  EvaluatorBenchReport run() {
    std::optional<Tokenizer> tokenizer(plain_tokenizer(config_.vocab));
    if (report_.options.device == "cuda") report_.idle_watts = make_gpu_meter(0)->power();
    const double started = boot_seconds();
    load();
    score();
    generate(*tokenizer);
    decode();
    report_.after_use = engine_->memory();
    engine_->close();
    engine_.reset();
    audit();
    report_.total_seconds = boot_seconds() - started;
    if (report_.options.package.empty()) without_border();
    return report_;
  }

 private:
  template <typename Work>
  static double seconds(const Work& work) {
    const double started = boot_seconds();
    work();
    return boot_seconds() - started;
  }

  EngineOptions engine_options() const {
    EngineOptions engine;
    engine.synthetic = report_.options.package.empty();
    engine.package = report_.options.package;
    engine.config = report_.options.config;
    engine.box = report_.options.box;
    engine.device = report_.options.device;
    engine.capacity = capacity_;
    engine.load_timeout = 600;
    engine.reply_timeout = 300;
    return engine;
  }

  void load() {
    engine_ = std::make_unique<Engine>(engine_options());
    report_.device = engine_->device_name();
    report_.box = box_kind_name(report_.options.box);
    report_.logits = engine_->logits_kind();
    report_.load_seconds = engine_->load_seconds();
    report_.first_token_seconds = seconds([&] {
      const EngineSequence sequence{0, 0, {blocks_.ids[0].data(), 1}, 0};
      engine_->forward({&sequence, 1}, [&](const float* rows, int64_t, int64_t n) {
        engine_->reader().argmax(rows, n, engine_->vocab());
      });
    });
    report_.after_load = engine_->memory();
  }

  std::vector<int64_t> first_blocks(int64_t count) const {
    std::vector<int64_t> which(static_cast<size_t>(std::min(count, report_.options.blocks)));
    std::iota(which.begin(), which.end(), int64_t{0});
    return which;
  }

  void score() {
    const int64_t pack = capacity_.tokens / (blocks_.length() - 1);
    score_blocks(*engine_, blocks_, first_blocks(pack));  // warm-up: one whole forward
    EnergyMeter energy(engine_->gpu());
    energy.start();
    report_.scoring_seconds = seconds([&] { scored_ = score_all_blocks(*engine_, blocks_); });
    energy.stop(report_.options.blocks * blocks_.continuation);
    report_.scoring_energy = energy.use();
    const auto rows = static_cast<double>(report_.options.blocks * (blocks_.length() - 1));
    report_.scoring_rate = rows / report_.scoring_seconds;
    report_.scoring_flops =
        block_flops() * static_cast<double>(report_.options.blocks) / report_.scoring_seconds;
  }

  /// Of one block: the products of its rows, the head of its scored rows, causal attention.
  double block_flops() const {
    const int64_t rows = blocks_.length() - 1;
    const auto square = static_cast<double>(rows * rows);
    double total = forward_flops(config_, rows);
    total += 2.0 * static_cast<double>(blocks_.continuation) *
             static_cast<double>(config_.vocab * config_.hidden);
    for (const BlockConfig& block : config_.blocks) {
      if (block.mixer != MixerKind::kAttention) continue;
      total += 2.0 * square * static_cast<double>(block.attention.queries());
    }
    return total;
  }

  void generate(const Tokenizer& tokenizer) {
    report_.generation_seconds = seconds([&] {
      for (const Generation& g : generate_all(*engine_, tokenizer, {}, requests_)) {
        report_.generated += static_cast<int64_t>(g.ids.size());
      }
    });
  }

  /// In an engine of its own, as a verification does it.
  void audit() {
    report_.audit_seconds = seconds([&] {
      Engine fresh(engine_options());
      report_.audit = audit_causality(fresh, blocks_, scored_, contract_.audit, kSeed);
      fresh.close();
    });
  }

  void decode() {
    const auto prompts = fresh_prompts(blocks_, decode_prompts(contract_.decode),
                                       contract_.decode.prompt_tokens, kSeed);
    report_.decode_seconds = seconds(
        [&] { report_.decode = measure_decode_speed(*engine_, contract_.decode, prompts); });
  }

  /// The same packs by the same model in this process; the ceiling right after, on a warm device.
  void without_border() {
    const bool cuda = report_.options.device == "cuda";
    std::unique_ptr<Ops> ops = cuda ? make_cuda_ops(0) : make_cpu_ops();
    SyntheticSource weights(*ops);
    Model model(*ops, config_, weights, capacity_);
    auto* logits = ops->arena().allocate<float>(
        static_cast<size_t>(capacity_.logits_rows * config_.vocab), Category::kLogits, "logits");
    const auto reader = cuda ? make_cuda_logits_reader(0) : make_host_logits_reader();
    const auto pack = static_cast<size_t>(
        std::clamp<int64_t>(capacity_.tokens / (blocks_.length() - 1), 1, capacity_.sequences));
    const std::vector<int64_t> which = first_blocks(report_.options.direct_blocks);
    const auto work = [&](size_t begin) {
      const size_t end = std::min(begin + pack, which.size());
      score_here(model, *ops, *reader, logits, std::span(which).subspan(begin, end - begin));
    };
    work(0);
    const double taken = seconds([&] {
      for (size_t begin = 0; begin < which.size(); begin += pack) work(begin);
    });
    report_.direct_rate =
        static_cast<double>(which.size()) * static_cast<double>(blocks_.length() - 1) / taken;
    report_.gemm_rate = gemm_rate(*ops);
  }

  double gemm_rate(Ops& ops) const {
#if defined(CBENCH_HAVE_CUDA)
    if (ops.is_cuda()) return gemm_ceiling(config_, capacity_.tokens, *make_cuda_ceilings(ops));
#endif
    (void)ops;
    return gemm_ceiling(config_, capacity_.tokens, *make_cpu_ceilings());
  }

  void score_here(Model& model, Ops& ops, LogitsReader& reader, float* logits,
                  std::span<const int64_t> which) {
    std::vector<int32_t> ids, rows, targets;
    std::vector<Span> spans;
    for (size_t i = 0; i < which.size(); ++i) {
      const std::vector<int32_t>& block = blocks_.ids[static_cast<size_t>(which[i])];
      const auto first = static_cast<int32_t>(ids.size());
      const auto count = static_cast<int32_t>(block.size() - 1);
      spans.push_back({static_cast<int32_t>(i), 0, first, count});
      ids.insert(ids.end(), block.begin(), block.end() - 1);
      for (auto row = static_cast<int32_t>(blocks_.context - 1); row < count; ++row) {
        rows.push_back(first + row);
        targets.push_back(block[static_cast<size_t>(row + 1)]);
      }
    }
    model.forward({ids, spans});
    std::vector<RowScore> scores(static_cast<size_t>(capacity_.logits_rows));
    for (size_t done = 0; done < rows.size();) {
      const size_t n = std::min(scores.size(), rows.size() - done);
      model.logits(std::span(rows).subspan(done, n), logits);
      ops.synchronize();
      reader.score(logits, static_cast<int64_t>(n), config_.vocab,
                   std::span(targets).subspan(done, n), std::span(scores).first(n));
      done += n;
    }
  }

  ModelConfig config_;
  Contract contract_;
  Blocks blocks_;
  std::vector<GenerationRequest> requests_;
  int64_t longest_ = 0;
  Capacity capacity_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<RowScore>> scored_;
  EvaluatorBenchReport report_;
};

}  // namespace

EvaluatorBenchReport bench_evaluator(const EvaluatorBenchOptions& options) {
  return EvaluatorBench(options).run();
}

}  // namespace cbench
