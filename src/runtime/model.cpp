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
  std::shared_ptr<WeightMemory> memory;  ///< null: nothing streams
  std::vector<int64_t> lengths;          ///< tokens in each slot; -1 after a failure inside forward
  int64_t rows = 0;                      ///< rows of the last forward
  void* residual = nullptr;              ///< [tokens, hidden]
  void* wide = nullptr;                  ///< [tokens, widest projection or MLP]
  void* mixed = nullptr;                 ///< [tokens, widest mixer output]
  void* branch = nullptr;                ///< [tokens, hidden]: what is added to the residual stream
  void* normed = nullptr;                ///< [tokens, hidden]: input of routed experts
  void* latent = nullptr;                ///< [tokens, widest latent]
  void* routed = nullptr;                ///< [tokens, widest output of routed experts]
  Routing routing;                       ///< [tokens, largest top_k]
  void* gathered = nullptr;              ///< [logits_rows, hidden]
  float* step_logits = nullptr;          ///< [1, vocab]
  std::unique_ptr<Replay> step;

  Impl(Ops& the_ops, const ModelConfig& the_config, WeightSource& weights, const Capacity& capacity)
      : ops(the_ops), config(the_config), limits(capacity) {
    check_capacity(limits);
    bound = bind_model(ops, config, weights, limits);
    memory = weights.memory();
    lengths.assign(static_cast<size_t>(limits.slots), 0);
    allocate();
    plan();
  }

  void* take(int64_t rows_wanted, int64_t width, const char* name) {
    if (width == 0) return nullptr;
    return ops.arena().allocate(static_cast<size_t>(rows_wanted * width * ops.activation_bytes()),
                                Category::kActivations, name);
  }

  void allocate() {
    int64_t wide_width = 0, mixed_width = 0, latent_width = 0, routed_width = 0, top_k = 0;
    for (const Block& block : bound.blocks) {
      if (const auto& mixer = block.mixer) {
        wide_width = std::max(wide_width, mixer->in.rows());
        mixed_width = std::max(mixed_width, mixer->out.cols());
      }
      if (!block.feed_forward) continue;
      if (const auto& mlp = block.feed_forward->mlp)
        wide_width = std::max(wide_width, mlp->width());
      if (const auto& moe = block.feed_forward->moe) {
        if (moe->latent()) latent_width = std::max(latent_width, moe->width());
        routed_width = std::max(routed_width, moe->width());
        top_k = std::max(top_k, moe->router.top_k);
      }
    }
    residual = take(limits.tokens, config.hidden, "residual stream");
    wide = take(limits.tokens, wide_width, "projections");
    mixed = take(limits.tokens, mixed_width, "mixer outputs");
    branch = take(limits.tokens, needs_branch() ? config.hidden : 0, "outputs before their norm");
    normed = take(limits.tokens, routed_width > 0 ? config.hidden : 0, "inputs of experts");
    latent = take(limits.tokens, latent_width, "latent inputs of experts");
    routed = take(limits.tokens, routed_width, "outputs of experts");
    if (top_k > 0) {
      const auto choices = static_cast<size_t>(limits.tokens * top_k);
      routing.expert =
          ops.arena().allocate<int32_t>(choices, Category::kActivations, "chosen experts");
      routing.weight =
          ops.arena().allocate<float>(choices, Category::kActivations, "experts' weights");
    }
    gathered = take(limits.logits_rows, config.hidden, "rows for the head");
    step_logits = ops.arena().allocate<float>(static_cast<size_t>(config.vocab),
                                              Category::kActivations, "step logits");
  }

  /// Whether some part does not add its output to the residual stream at once.
  bool needs_branch() const {
    return std::any_of(bound.blocks.begin(), bound.blocks.end(), [](const Block& block) {
      const auto& part = block.feed_forward;
      return (block.mixer && block.mixer->out_norm.weight) ||
             (part && (part->out_norm.weight || (part->mlp && part->mlp->gate) ||
                       (part->moe && part->moe->router_norm.weight)));
    });
  }

  void plan() {
    OpsPlan parts;
    parts.matrices = {&bound.embedding, &bound.head};
    const auto add = [&](const Projection& projection) {
      for (const Linear& part : projection.parts) parts.matrices.push_back(&part);
    };
    for (const Block& block : bound.blocks) {
      if (const auto& mixer = block.mixer) {
        add(mixer->in);
        add(mixer->out);
        if (mixer->kind == MixerKind::kAttention) parts.attention.push_back(mixer->attention);
        if (mixer->kind == MixerKind::kDeltaNet) parts.delta.push_back(mixer->delta);
        if (mixer->kind == MixerKind::kMamba2) parts.mamba2.push_back(mixer->mamba2);
      }
      if (!block.feed_forward) continue;
      if (const auto& mlp = block.feed_forward->mlp) {
        add(mlp->up);
        add(mlp->down);
      }
      if (const auto& moe = block.feed_forward->moe) {
        parts.routers.push_back(moe->router);
        parts.experts.push_back(moe->experts);
        add(moe->latent_in);
        if (moe->latent()) parts.matrices.push_back(&moe->latent_out);
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
    ops.embed(bound.embedding, static_cast<float>(config.embedding_scale), residual);
    for (size_t i = 0; i < bound.blocks.size(); ++i) {
      const Block& block = bound.blocks[i];
      if (memory) memory->arrive(i);
      if (block.mixer) run_mixer(*block.mixer);
      if (block.feed_forward) run_feed_forward(*block.feed_forward);
      if (memory) memory->leave(i);
    }
  }

  void run_mixer(const Mixer& mixer) {
    ops.project(residual, &mixer.norm, rows, mixer.in, wide);
    if (mixer.bias) ops.add_bias(wide, rows, mixer.in.rows(), mixer.bias);
    if (mixer.kind == MixerKind::kAttention) {
      ops.attention(mixer.attention, mixer.cache, wide, mixed);
    } else if (mixer.kind == MixerKind::kDeltaNet) {
      ops.delta_net(mixer.delta, mixer.delta_state, wide, mixed);
    } else {
      ops.mamba2(mixer.mamba2, mixer.mamba2_state, wide, mixed);
    }
    add_output(mixer.out, mixed, mixer.out_norm);
    if (mixer.out_bias) ops.add_bias(residual, rows, config.hidden, mixer.out_bias);
  }

  /// residual += norm(W x), or W x without a norm.
  void add_output(const Projection& w, const void* x, const Norm& norm) {
    if (!norm.weight) return ops.project_add(x, rows, w.parts.front(), residual);
    ops.project(x, nullptr, rows, w, branch);
    ops.add_normed(branch, &norm, rows, config.hidden, 1, residual);
  }

  /// Both branches read the residual stream before either adds to it.
  void run_feed_forward(const FeedForward& part) {
    if (part.moe) run_experts(*part.moe);
    if (part.mlp) {
      ops.gate_up(residual, &part.mlp->norm, rows, part.mlp->up, part.mlp->activation, wide);
    }
    if (part.out_norm.weight) return add_normed_sum(part);
    if (part.mlp) add_mlp(*part.mlp);
    if (!part.moe) return;
    if (part.moe->latent()) {
      ops.project_add(routed, rows, part.moe->latent_out, residual);
    } else {
      ops.add_normed(routed, nullptr, rows, config.hidden, 1, residual);
    }
  }

  /// Leaves the experts' input in `normed` and their output, still latent, in `routed`.
  void run_experts(const Moe& moe) {
    ops.rms_norm(residual, moe.norm, rows, config.hidden, normed);
    const void* seen = normed;
    if (moe.router_norm.weight) {
      ops.rms_norm(residual, moe.router_norm, rows, config.hidden, branch);
      seen = branch;
    }
    ops.route(moe.router, seen, rows, config.hidden, routing);
    if (moe.latent()) ops.project(normed, nullptr, rows, moe.latent_in, latent);
    ops.experts(moe.experts, routing, moe.latent() ? latent : normed, rows, routed);
  }

  /// The second half of an MLP, whose first is in `wide`.
  void add_mlp(const Mlp& mlp) {
    if (!mlp.gate) return ops.project_add(wide, rows, mlp.down.parts.front(), residual);
    ops.project(wide, nullptr, rows, mlp.down, branch);
    ops.add_gated(branch, normed, mlp.gate, rows, config.hidden, residual);
  }

  /// residual = (residual + norm(sum of the branches)) * scale.
  void add_normed_sum(const FeedForward& part) {
    const int64_t width = config.hidden;
    const void* sum = routed;
    if (part.mlp) {
      ops.project(wide, nullptr, rows, part.mlp->down, branch);
      sum = branch;
    }
    if (part.mlp && part.moe) {
      ops.rms_norm(branch, part.mlp->out_norm, rows, width, normed);
      ops.add_normed(routed, &part.moe->out_norm, rows, width, 1, normed);
      sum = normed;
    }
    ops.add_normed(sum, &part.out_norm, rows, width, part.scale, residual);
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
    ops.lm_head(gathered, bound.final_norm, static_cast<int64_t>(wanted.size()), bound.head,
                static_cast<float>(config.softcap), out);
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
        ops.lm_head(residual, bound.final_norm, 1, bound.head, static_cast<float>(config.softcap),
                    step_logits);
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
