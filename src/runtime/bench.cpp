// Runs the measurements of `cbench bench`.
#include "runtime/bench.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "runtime/timed_ops.h"
#include "util/random.h"

namespace cbench {
namespace {

constexpr int64_t kCopyBytes = int64_t{256} << 20;
constexpr int64_t kHeadRows = 512;  // rows of the head at a time, as in scoring

struct Gemm {
  int64_t n, k, count;
};

/// The matrix products of one forward without the head, by shape; what shares an input is one
/// product. An expert's product counts as many times as experts serve a token.
std::vector<Gemm> forward_gemms(const ModelConfig& config) {
  std::map<std::pair<int64_t, int64_t>, int64_t> shapes;
  const int64_t hidden = config.hidden;
  for (const BlockConfig& block : config.blocks) {
    if (block.mixer == MixerKind::kAttention) {
      ++shapes[{block.attention.in_rows(), hidden}];
      ++shapes[{hidden, block.attention.queries()}];
    } else if (block.mixer == MixerKind::kDeltaNet) {
      ++shapes[{block.delta.in_rows(), hidden}];
      ++shapes[{hidden, block.delta.values()}];
    } else if (block.mixer == MixerKind::kMamba2) {
      ++shapes[{block.mamba2.in_rows(), hidden}];
      ++shapes[{hidden, block.mamba2.inner()}];
    }
    if (const MlpConfig& mlp = block.mlp; mlp.width > 0) {
      ++shapes[{is_gated(mlp.activation) ? 2 * mlp.width : mlp.width, hidden}];
      ++shapes[{hidden, mlp.width}];
    }
    if (const MoeConfig& moe = block.moe; moe.experts > 0) {
      const int64_t width = moe.latent > 0 ? moe.latent : hidden;
      shapes[{moe.in_rows(), width}] += moe.top_k;
      shapes[{width, moe.width}] += moe.top_k;
      if (moe.latent > 0) {
        ++shapes[{moe.latent, hidden}];
        ++shapes[{hidden, moe.latent}];
      }
    }
  }
  std::vector<Gemm> gemms;
  for (const auto& [shape, count] : shapes) gemms.push_back({shape.first, shape.second, count});
  return gemms;
}

class Bench {
 public:
  Bench(Ops& ops, const ModelConfig& config, WeightSource& weights, Ceilings& ceilings,
        const BenchOptions& options)
      : ops_(ops),
        timed_(ops),
        config_(config),
        ceilings_(ceilings),
        memory_(weights.memory()),
        model_(timed_, config, weights, bench_capacity(options)) {
    report_.options = options;
    report_.device = ops.device_name();
    report_.model = config.architecture;
    report_.blocks = report_.of_blocks = static_cast<int64_t>(config.blocks.size());
    if (memory_) report_.streamed = memory_->streamed();
    make_batch();
    const auto logits = static_cast<size_t>(kHeadRows * config.vocab);
    logits_ = ops.arena().allocate<float>(logits, Category::kLogits, "bench logits");
    ops.arena().freeze();
  }

  BenchReport run() {
    count_work();
    prefill();  // warm-up
    decode();
    for (int64_t i = 0; i < report_.options.repetitions; ++i) repeat();
    profile();
    return report_;
  }

 private:
  void make_batch() {
    Random random(7);
    const BenchOptions& options = report_.options;
    for (int64_t t = 0; t < options.tokens; ++t) {
      ids_.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(config_.vocab))));
    }
    for (int64_t row = 0; row < options.tokens; row += options.sequence) {
      spans_.push_back({static_cast<int32_t>(spans_.size()), 0, static_cast<int32_t>(row),
                        static_cast<int32_t>(std::min(options.sequence, options.tokens - row))});
    }
    context_.resize(static_cast<size_t>(options.context));
    for (int32_t& id : context_) {
      id = static_cast<int32_t>(random.below(static_cast<uint64_t>(config_.vocab)));
    }
  }

  void count_work() {
    const auto rows = static_cast<double>(report_.options.tokens);
    report_.forward_flops = forward_flops(config_, report_.options.tokens);
    report_.head_flops = 2.0 * rows * static_cast<double>(config_.vocab * config_.hidden);
    for (const MatrixShape& matrix : model_matrices(config_)) {
      report_.parameters += matrix.elements();
    }
    count_step_bytes();
  }

  /// The share of the weights that serves one token.
  double active_share() const {
    double active = 0, all = 0;
    for (const MatrixShape& matrix : model_matrices(config_)) {
      if (matrix.name == config_.embedding_name() || matrix.name == config_.head_name()) continue;
      all += static_cast<double>(matrix.elements());
      active += static_cast<double>(matrix.active * matrix.rows * matrix.cols);
    }
    return all > 0 ? active / all : 1;
  }

  /// Every weight that serves the token once, one row of the table, the caches of one sequence at
  /// its mean length.
  void count_step_bytes() {
    const ArenaReport& arena = ops_.arena().report();
    const auto live = [&](Category category) {
      return static_cast<double>(arena.live[static_cast<size_t>(category)]);
    };
    auto& bytes = report_.step_bytes;
    const auto slots = static_cast<double>(model_.limits().slots);
    const auto table = static_cast<double>(config_.vocab);
    // Of streamed weights the arena holds only the slots.
    const auto apart = memory_ ? static_cast<double>(memory_->streamed() - memory_->slots()) : 0.0;
    bytes[static_cast<size_t>(Category::kWeights)] =
        (live(Category::kWeights) + apart) * active_share();
    bytes[static_cast<size_t>(Category::kMetadata)] = live(Category::kMetadata);
    const double embedding = live(Category::kEmbedding);
    const double head = config_.tied_embedding ? embedding : embedding / 2;
    bytes[static_cast<size_t>(Category::kEmbedding)] = head + head / table;
    const BenchOptions& options = report_.options;
    const double length =
        static_cast<double>(options.context) + static_cast<double>(options.decode) / 2;
    bytes[static_cast<size_t>(Category::kKv)] =
        live(Category::kKv) / slots * length / static_cast<double>(model_.limits().max_length);
    bytes[static_cast<size_t>(Category::kState)] = live(Category::kState) / slots;
  }

  double seconds(const std::function<void()>& work) {
    ops_.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    work();
    ops_.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  void prefill() { model_.forward({ids_, spans_}); }

  void score_rows() {
    std::vector<int32_t> rows(static_cast<size_t>(kHeadRows));
    for (int64_t first = 0; first < report_.options.tokens; first += kHeadRows) {
      const int64_t count = std::min(kHeadRows, report_.options.tokens - first);
      rows.resize(static_cast<size_t>(count));
      std::iota(rows.begin(), rows.end(), static_cast<int32_t>(first));
      model_.logits(rows, logits_);
    }
  }

  /// Seconds per generated token.
  double decode() {
    const Span span{0, 0, 0, static_cast<int32_t>(context_.size())};
    model_.forward({context_, {&span, 1}});
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    const auto generate = [&] {
      model_.generate(0, ids_[0], span.count, report_.options.decode, [&](int32_t id) {
        hash = (hash ^ static_cast<uint32_t>(id)) * 0x100000001b3u;
        return true;
      });
    };
    const double total = seconds(generate);
    report_.token_hash = hash;
    return total / static_cast<double>(report_.options.decode);
  }

  /// One repetition: a ceiling and what is held against it, right after each other.
  void repeat() {
    const auto rows = static_cast<double>(report_.options.tokens);
    const double gemm = gemm_ceiling(config_, report_.options.tokens, ceilings_);
    const double forward = seconds([&] { prefill(); });
    const double head = seconds([&] { score_rows(); });
    report_.gemm_rate.values.push_back(gemm);
    report_.prefill.values.push_back(rows / forward);
    report_.scoring.values.push_back(rows / (forward + head));
    report_.gemm_share.values.push_back(report_.forward_flops / forward / gemm);

    const double bytes = report_.bytes_per_token();
    const double read = ceilings_.read_bandwidth(static_cast<int64_t>(bytes));
    const double step = decode();
    report_.read_rate.values.push_back(read);
    report_.decode.values.push_back(1 / step);
    report_.read_share.values.push_back(bytes / step / read);
    report_.copy_rate.values.push_back(ceilings_.copy_bandwidth(kCopyBytes));
  }

  void profile() {
    timed_.enable(true);
    prefill();
    score_rows();
    report_.prefill_ops = timed_.take();
    const Span first{0, 0, 0, static_cast<int32_t>(context_.size())};
    model_.forward({context_, {&first, 1}});
    timed_.take();
    const Span next{0, first.count, 0, 1};
    const int32_t row = 0;
    model_.forward({{ids_.data(), 1}, {&next, 1}});
    model_.logits({&row, 1}, logits_);
    report_.decode_ops = timed_.take();
    timed_.enable(false);
  }

  Ops& ops_;
  TimedOps timed_;
  const ModelConfig& config_;
  Ceilings& ceilings_;
  std::shared_ptr<WeightMemory> memory_;
  Model model_;
  BenchReport report_;
  std::vector<int32_t> ids_, context_;
  std::vector<Span> spans_;
  float* logits_ = nullptr;
};

}  // namespace

double Samples::median() const {
  if (values.empty()) return 0;
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}
double Samples::low() const {
  return values.empty() ? 0 : *std::min_element(values.begin(), values.end());
}
double Samples::high() const {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

double forward_flops(const ModelConfig& config, int64_t rows) {
  double total = 0;
  for (const Gemm& gemm : forward_gemms(config)) {
    total += 2.0 * static_cast<double>(rows) * static_cast<double>(gemm.n * gemm.k * gemm.count);
  }
  return total;
}

double gemm_ceiling(const ModelConfig& config, int64_t rows, Ceilings& ceilings) {
  double total = 0;
  for (const Gemm& gemm : forward_gemms(config)) {
    total += static_cast<double>(gemm.count) * ceilings.gemm_seconds(rows, gemm.n, gemm.k);
  }
  return forward_flops(config, rows) / total;
}

double BenchReport::bytes_per_token() const {
  return std::accumulate(step_bytes.begin(), step_bytes.end(), 0.0);
}

Capacity bench_capacity(const BenchOptions& options) {
  Capacity capacity;
  capacity.tokens = std::max(options.tokens, options.context);
  capacity.sequences = (options.tokens + options.sequence - 1) / options.sequence;
  capacity.slots = capacity.sequences;
  capacity.max_length = std::max(options.sequence, options.context + options.decode);
  capacity.logits_rows = kHeadRows;
  return capacity;
}

BenchReport bench_model(Ops& ops, const ModelConfig& config, WeightSource& weights,
                        Ceilings& ceilings, const BenchOptions& options) {
  return Bench(ops, config, weights, ceilings, options).run();
}

}  // namespace cbench
