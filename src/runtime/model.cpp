// The visitor that runs a model's blocks over batches.
#include "runtime/model.h"

#include <algorithm>

#include "runtime/blocks.h"
#include "util/error.h"

namespace cbench {
namespace {

[[noreturn]] void batch_error(const std::string& message) {
  throw UsageError("batch", "batch: " + message);
}

void check_capacity(const Capacity& limits) {
  if (limits.tokens < 1 || limits.sequences < 1 || limits.slots < 1 || limits.max_length < 1 ||
      limits.logits_rows < 1 || limits.tokens > INT32_MAX || limits.max_length > INT32_MAX) {
    throw UsageError("capacity", "the model's capacity must be positive in every dimension");
  }
}

}  // namespace

struct Model::Impl {
  Ops& ops;
  ModelConfig config;
  Capacity limits;
  BoundModel bound;
  std::vector<int64_t> lengths;  ///< tokens in each slot; -1 after a failure inside forward
  int64_t rows = 0;              ///< rows of the last forward
  void* residual = nullptr;      ///< [tokens, hidden]
  void* wide = nullptr;          ///< [tokens, widest projection or MLP]
  void* mixed = nullptr;         ///< [tokens, widest mixer output]
  void* gathered = nullptr;      ///< [logits_rows, hidden]
  float* step_logits = nullptr;  ///< [1, vocab]
  std::unique_ptr<Replay> step;

  Impl(Ops& the_ops, const ModelConfig& the_config, WeightSource& weights, const Capacity& capacity)
      : ops(the_ops), config(the_config), limits(capacity) {
    check_capacity(limits);
    bound = bind_model(ops, config, weights, limits);
    lengths.assign(static_cast<size_t>(limits.slots), 0);
    allocate();
    plan();
  }

  void allocate() {
    int64_t wide_width = 0, mixed_width = 0;
    for (const Block& block : bound.blocks) {
      wide_width = std::max({wide_width, block.mixer_in.rows(), block.gate_up.rows() / 2});
      mixed_width = std::max(mixed_width, block.mixed_width());
    }
    const auto take = [&](int64_t count, const char* name) {
      return ops.arena().allocate(static_cast<size_t>(count * ops.activation_bytes()),
                                  Category::kActivations, name);
    };
    residual = take(limits.tokens * config.hidden, "residual stream");
    wide = take(limits.tokens * wide_width, "projections");
    mixed = take(limits.tokens * mixed_width, "mixer outputs");
    gathered = take(limits.logits_rows * config.hidden, "rows for the head");
    step_logits = ops.arena().allocate<float>(static_cast<size_t>(config.vocab),
                                              Category::kActivations, "step logits");
  }

  void plan() {
    OpsPlan parts;
    parts.matrices = {&bound.embedding, &bound.head};
    for (const Block& block : bound.blocks) {
      for (const Linear& part : block.mixer_in.parts) parts.matrices.push_back(&part);
      for (const Linear& part : block.gate_up.parts) parts.matrices.push_back(&part);
      parts.matrices.push_back(&block.mixer_out);
      parts.matrices.push_back(&block.down);
      if (block.mixer == MixerKind::kAttention) {
        parts.attention.push_back(block.attention);
      } else {
        parts.delta.push_back(block.delta);
      }
    }
    ops.reserve(limits, parts);
  }

  void check(const Batch& batch) const {
    const auto total = static_cast<int64_t>(batch.ids.size());
    if (total < 1 || total > limits.tokens) {
      batch_error(std::to_string(total) + " rows; between 1 and " + std::to_string(limits.tokens) +
                  " are possible");
    }
    if (static_cast<int64_t>(batch.spans.size()) > limits.sequences) {
      batch_error(std::to_string(batch.spans.size()) + " sequences; at most " +
                  std::to_string(limits.sequences) + " are possible");
    }
    for (const int32_t id : batch.ids) {
      if (id < 0 || id >= config.vocab) {
        batch_error("token id " + std::to_string(id) + " is outside the vocabulary of " +
                    std::to_string(config.vocab));
      }
    }
    int64_t row = 0;
    std::vector<bool> used(static_cast<size_t>(limits.slots));
    for (const Span& span : batch.spans) {
      if (span.row != row || span.count < 1) batch_error("spans must cover the rows in order");
      row += span.count;
      check_span(span);
      if (used[static_cast<size_t>(span.slot)]) batch_error("a slot is named twice");
      used[static_cast<size_t>(span.slot)] = true;
    }
    if (row != total) batch_error("spans must cover the rows in order");
  }

  void check_span(const Span& span) const {
    if (span.slot < 0 || span.slot >= limits.slots) {
      batch_error("slot " + std::to_string(span.slot) + "; there are " +
                  std::to_string(limits.slots));
    }
    const int64_t length = lengths[static_cast<size_t>(span.slot)];
    if (span.start != 0 && span.start != length) {
      batch_error("a span starts at " + std::to_string(span.start) + " in slot " +
                  std::to_string(span.slot) + ", which holds " +
                  (length < 0 ? "an unfinished batch" : std::to_string(length) + " tokens") +
                  "; continue there or start again at 0");
    }
    if (int64_t{span.start} + span.count > limits.max_length) {
      batch_error("a sequence of " + std::to_string(int64_t{span.start} + span.count) +
                  " tokens; at most " + std::to_string(limits.max_length) + " fit");
    }
  }

  void run_blocks() {
    ops.embed(bound.embedding, 1, residual);
    for (const Block& block : bound.blocks) run_block(block);
  }

  void run_block(const Block& block) {
    ops.project(residual, &block.input_norm, rows, block.mixer_in, wide);
    if (block.mixer_bias) ops.add_bias(wide, rows, block.mixer_in.rows(), block.mixer_bias);
    if (block.mixer == MixerKind::kAttention) {
      ops.attention(block.attention, block.cache, wide, mixed);
    } else {
      ops.delta_net(block.delta, block.state, wide, mixed);
    }
    ops.project_add(mixed, rows, block.mixer_out, residual);
    if (block.out_bias) ops.add_bias(residual, rows, config.hidden, block.out_bias);
    ops.gate_up(residual, &block.mlp_norm, rows, block.gate_up, Activation::kSilu, wide);
    ops.project_add(wide, rows, block.down, residual);
  }

  void forward(const Batch& batch) {
    check(batch);
    rows = 0;  // nothing valid to take logits of until this succeeded
    for (const Span& span : batch.spans) lengths[static_cast<size_t>(span.slot)] = -1;
    ops.upload(batch);
    rows = static_cast<int64_t>(batch.ids.size());
    run_blocks();
    for (const Span& span : batch.spans) {
      lengths[static_cast<size_t>(span.slot)] = span.start + span.count;
    }
  }

  void logits(std::span<const int32_t> wanted, float* out) {
    if (wanted.empty()) return;
    if (static_cast<int64_t>(wanted.size()) > limits.logits_rows) {
      batch_error(std::to_string(wanted.size()) + " rows of logits; at most " +
                  std::to_string(limits.logits_rows) + " are possible");
    }
    for (const int32_t row : wanted) {
      if (row < 0 || row >= rows) {
        batch_error("logits of row " + std::to_string(row) + "; the last forward had " +
                    std::to_string(rows));
      }
    }
    ops.gather_rows(residual, wanted, config.hidden, gathered);
    ops.lm_head(gathered, bound.final_norm, static_cast<int64_t>(wanted.size()), bound.head, 0,
                out);
  }

  void generate(int32_t slot, int32_t first, int32_t start, int64_t count,
                const std::function<bool(int32_t)>& token) {
    if (count < 1) return;
    if (count > limits.max_length - start) {
      batch_error("generating " + std::to_string(count) + " tokens from position " +
                  std::to_string(start) + "; at most " + std::to_string(limits.max_length) +
                  " fit in a slot");
    }
    const Span span{slot, start, 0, 1};
    const Batch batch{{&first, 1}, {&span, 1}};
    check(batch);
    int64_t& length = lengths[static_cast<size_t>(slot)];
    length = -1;
    ops.upload(batch);
    rows = 1;
    if (!step) {
      step = ops.record([this] {
        run_blocks();
        ops.lm_head(residual, bound.final_norm, 1, bound.head, 0, step_logits);
        ops.advance_greedy(step_logits, config.vocab);
      });
    }
    int64_t fed = start;
    for (int64_t i = 0; i < count; ++i) {
      step->run();
      int32_t id = 0;
      ops.read_ids({&id, 1});
      length = ++fed;
      if (!token(id)) break;
    }
  }
};

Model::Model(Ops& ops, const ModelConfig& config, WeightSource& weights, const Capacity& limits)
    : impl_(std::make_unique<Impl>(ops, config, weights, limits)) {}
Model::~Model() = default;

const ModelConfig& Model::config() const { return impl_->config; }
const Capacity& Model::limits() const { return impl_->limits; }
void Model::forward(const Batch& batch) { impl_->forward(batch); }
void Model::logits(std::span<const int32_t> rows, float* out) { impl_->logits(rows, out); }
void Model::generate(int32_t slot, int32_t first, int32_t start, int64_t count,
                     const std::function<bool(int32_t)>& token) {
  impl_->generate(slot, first, start, count, token);
}

}  // namespace cbench
