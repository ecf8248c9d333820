// Binds the blocks of a model.
#include "runtime/blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <stdexcept>

#include "runtime/rope.h"

namespace cbench {
namespace {

Activation activation_of(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kGeluTanh:
      return Activation::kGeluTanh;
    case ActivationKind::kRelu2:
      return Activation::kRelu2;
    case ActivationKind::kSilu:
      break;
  }
  return Activation::kSilu;
}

class Binder {
 public:
  Binder(Ops& ops, const ModelConfig& config, WeightSource& weights, const Capacity& capacity)
      : ops_(ops), config_(config), weights_(weights), capacity_(capacity) {}

  BoundModel bind() {
    BoundModel model;
    model.embedding = weights_.matrix(config_.embedding_name(), config_.vocab, config_.hidden,
                                      Category::kEmbedding);
    const std::shared_ptr<WeightMemory> memory = weights_.memory();
    for (size_t i = 0; i < config_.blocks.size(); ++i) {
      if (memory) memory->open(i);
      model.blocks.push_back(bind_block(config_.blocks[i]));
      if (memory) memory->close();
    }
    model.final_norm = norm(config_.final_norm_name(), config_.hidden);
    model.head = config_.tied_embedding ? model.embedding
                                        : weights_.matrix(config_.head_name(), config_.vocab,
                                                          config_.hidden, Category::kEmbedding);
    return model;
  }

 private:
  Block bind_block(const BlockConfig& config) {
    Block block;
    if (config.mixer != MixerKind::kNone) block.mixer = bind_mixer(config);
    if (config.mlp.width > 0 || config.moe.experts > 0) {
      block.feed_forward = bind_feed_forward(config);
    }
    return block;
  }

  Mixer bind_mixer(const BlockConfig& config) {
    Mixer mixer;
    mixer.kind = config.mixer;
    mixer.norm = norm(config.mixer_norm, config_.hidden);
    mixer.out_norm = norm(config.mixer_out_norm, config_.hidden);
    if (config.mixer == MixerKind::kAttention) {
      bind_attention(config.attention, config.mixer_prefix, mixer);
    } else if (config.mixer == MixerKind::kDeltaNet) {
      bind_delta_net(config.delta, config.mixer_prefix, mixer);
    } else {
      bind_mamba2(config.mamba2, config.mixer_prefix, mixer);
    }
    return mixer;
  }

  void bind_attention(const AttentionConfig& config, const std::string& prefix, Mixer& mixer) {
    AttentionSpec& spec = mixer.attention;
    spec.query_heads = config.query_heads;
    spec.kv_heads = config.kv_heads;
    spec.head_dim = config.head_dim;
    spec.gated = config.gated;
    spec.scale = static_cast<float>(config.scale);
    spec.window = config.window;
    spec.k_is_v = config.k_is_v;
    spec.rope = rope(config.rope);
    if (config.qk_norm) {
      spec.q_norm = norm(prefix + "q_norm.weight", spec.head_dim);
      spec.k_norm = norm(prefix + "k_norm.weight", spec.head_dim);
    }
    if (config.v_norm) spec.v_norm_eps = static_cast<float>(config_.norm_eps);
    const int64_t queries = config.queries(), keys = config.keys();
    std::vector<std::string> names = {prefix + "q_proj", prefix + "k_proj"};
    std::vector<int64_t> rows = {config.gated ? 2 * queries : queries, keys};
    if (!config.k_is_v) {
      names.push_back(prefix + "v_proj");
      rows.push_back(keys);
    }
    mixer.in = project(names, rows);
    if (config.bias) mixer.bias = bias(names, rows);
    bind_out(prefix + "o_proj", queries, config.output_bias, mixer);
    const int64_t bytes = capacity_.slots * capacity_.max_length * keys * ops_.activation_bytes();
    mixer.cache.k = ops_.arena().allocate(static_cast<size_t>(bytes), Category::kKv, prefix + "k");
    mixer.cache.v = ops_.arena().allocate(static_cast<size_t>(bytes), Category::kKv, prefix + "v");
    mixer.cache.max_length = capacity_.max_length;
  }

  /// What a delta net and Mamba 2 have in common: convolution, decay per head, norm of the output.
  template <typename Spec>
  void bind_recurrence(Spec& spec, int64_t heads, int64_t norm_width, const std::string& prefix) {
    const std::array<int64_t, 3> taps = {spec.conv_rows(), 1, spec.conv};
    spec.conv_weight = weights_.vector(prefix + "conv1d.weight", taps, 0);
    spec.dt_bias = vector(prefix + "dt_bias", heads);
    spec.neg_exp_a = negative_exp(prefix + "A_log", heads);
    spec.out_norm = plain_norm(prefix + "norm.weight", norm_width);
  }
  template <typename State, typename Spec>
  void bind_states(State& to, const Spec& spec, int64_t recurrent, const std::string& prefix) {
    to.conv = state(spec.conv_rows() * (spec.conv - 1), prefix + "convolution state");
    to.recurrent = state(recurrent, prefix + "state");
  }

  void bind_delta_net(const DeltaNetConfig& config, const std::string& prefix, Mixer& mixer) {
    DeltaNetSpec& spec = mixer.delta;
    spec.key_heads = config.key_heads;
    spec.value_heads = config.value_heads;
    spec.key_dim = config.key_dim;
    spec.value_dim = config.value_dim;
    spec.conv = config.conv;
    bind_recurrence(spec, spec.value_heads, spec.value_dim, prefix);
    const std::array<std::string, 4> names = {prefix + "in_proj_qkv", prefix + "in_proj_z",
                                              prefix + "in_proj_b", prefix + "in_proj_a"};
    const std::array<int64_t, 4> rows = {spec.conv_rows(), config.values(), spec.value_heads,
                                         spec.value_heads};
    mixer.in = project(names, rows);
    bind_out(prefix + "out_proj", config.values(), false, mixer);
    bind_states(mixer.delta_state, spec, config.values() * spec.key_dim, prefix);
  }

  void bind_mamba2(const Mamba2Config& config, const std::string& prefix, Mixer& mixer) {
    Mamba2Spec& spec = mixer.mamba2;
    spec.heads = config.heads;
    spec.head_dim = config.head_dim;
    spec.groups = config.groups;
    spec.state = config.state;
    spec.conv = config.conv;
    spec.dt_min = static_cast<float>(config.dt_min);
    spec.dt_max = static_cast<float>(config.dt_max);
    bind_recurrence(spec, spec.heads, spec.inner(), prefix);
    if (config.conv_bias) spec.conv_bias = vector(prefix + "conv1d.bias", spec.conv_rows());
    spec.d = vector(prefix + "D", spec.heads);
    const std::array<std::string, 1> names = {prefix + "in_proj"};
    const std::array<int64_t, 1> rows = {config.in_rows()};
    mixer.in = project(names, rows);
    if (config.bias) mixer.bias = bias(names, rows);
    bind_out(prefix + "out_proj", spec.inner(), config.bias, mixer);
    bind_states(mixer.mamba2_state, spec, spec.inner() * spec.state, prefix);
  }

  void bind_out(const std::string& module, int64_t cols, bool biased, Mixer& mixer) {
    mixer.out.parts = {
        weights_.matrix(module + ".weight", config_.hidden, cols, Category::kWeights)};
    if (biased) mixer.out_bias = bias(std::array{module}, std::array{config_.hidden});
  }

  FeedForward bind_feed_forward(const BlockConfig& config) {
    FeedForward part;
    if (config.mlp.width > 0) part.mlp = bind_mlp(config.mlp);
    if (config.moe.experts > 0) part.moe = bind_moe(config.moe);
    part.out_norm = norm(config.ff_out_norm, config_.hidden);
    if (!config.scale.empty()) {
      part.scale = weights_.host_vector(config.scale, std::array<int64_t, 1>{1}).front();
    }
    const bool summed = part.out_norm.weight != nullptr;
    if ((summed && part.moe && part.moe->latent()) || (!summed && part.scale != 1)) {
      throw std::logic_error("a feed-forward of a shape that the visitor does not run");
    }
    return part;
  }

  Mlp bind_mlp(const MlpConfig& config) {
    Mlp mlp;
    mlp.norm = norm(config.norm, config_.hidden);
    mlp.activation = activation_of(config.activation);
    std::vector<std::string> names = {config.prefix + "up_proj"};
    if (is_gated(config.activation)) names.insert(names.begin(), config.prefix + "gate_proj");
    mlp.up = project(names, std::vector<int64_t>(names.size(), config.width));
    mlp.down.parts = {weights_.matrix(config.prefix + "down_proj.weight", config_.hidden,
                                      config.width, Category::kWeights)};
    if (!config.gate.empty()) {
      mlp.gate = weights_.vector(config.gate, std::array<int64_t, 2>{1, config_.hidden}, 0);
    }
    mlp.out_norm = norm(config.out_norm, config_.hidden);
    return mlp;
  }

  Moe bind_moe(const MoeConfig& config) {
    Moe moe;
    moe.norm = norm(config.norm, config_.hidden);
    moe.out_norm = norm(config.out_norm, config_.hidden);
    if (!config.router_norm.empty()) moe.router_norm = router_norm(config.router_norm);
    moe.router = bind_router(config);
    const int64_t width = config.latent > 0 ? config.latent : config_.hidden;
    if (config.latent > 0) {
      moe.latent_in.parts = {
          weights_.matrix(config.latent_in, width, config_.hidden, Category::kWeights)};
      moe.latent_out =
          weights_.matrix(config.latent_out, config_.hidden, width, Category::kWeights);
    }
    moe.experts.top_k = config.top_k;
    moe.experts.activation = activation_of(config.activation);
    moe.experts.gate_up = weights_.experts(config.in_name(), config.kept, config.in_rows(), width);
    moe.experts.down = weights_.experts(config.down_name(), config.kept, width, config.width);
    return moe;
  }

  RouterSpec bind_router(const MoeConfig& config) {
    RouterSpec router;
    router.score = config.sigmoid ? RouterSpec::Score::kSigmoid : RouterSpec::Score::kSoftmax;
    router.experts = config.count();
    router.top_k = config.top_k;
    router.groups = config.groups;
    router.kept_groups = config.kept_groups;
    router.normalize = config.normalize;
    router.scale = static_cast<float>(config.scale);
    router.weight = kept_rows(config.router, config, config_.hidden);
    if (!config.router_bias.empty()) {
      router.selection_bias = kept_rows(config.router_bias, config, 0);
    }
    if (!config.expert_scale.empty()) {
      router.expert_scale = kept_rows(config.expert_scale, config, 0);
    }
    return router;
  }

  /// The kept experts' rows of a tensor [experts, width], or [experts] when width is 0.
  const float* kept_rows(const std::string& name, const MoeConfig& moe, int64_t width) {
    std::vector<int64_t> shape = {moe.experts};
    if (width > 0) shape.push_back(width);
    const std::vector<float> all = weights_.host_vector(name, shape);
    const auto size = std::max<int64_t>(width, 1);
    std::vector<float> kept;
    for (const int64_t expert : moe.kept) {
      const auto row = all.begin() + expert * size;
      kept.insert(kept.end(), row, row + size);
    }
    return on_device(kept, name);
  }

  Norm router_norm(const std::string& name) {
    std::vector<float> weight = weights_.host_vector(name, std::array<int64_t, 1>{config_.hidden});
    const float root = 1.0f / std::sqrt(static_cast<float>(config_.hidden));
    for (float& value : weight) value *= root;
    return {on_device(weight, name), static_cast<float>(config_.norm_eps)};
  }

  Projection project(std::span<const std::string> modules, std::span<const int64_t> rows) {
    std::vector<std::string> names;
    for (const std::string& module : modules) names.push_back(module + ".weight");
    return weights_.projection(names, rows, config_.hidden);
  }

  /// The biases of adjacent projections, end to end.
  const float* bias(std::span<const std::string> modules, std::span<const int64_t> rows) {
    std::vector<float> all;
    for (size_t i = 0; i < modules.size(); ++i) {
      const auto part = weights_.host_vector(modules[i] + ".bias", rows.subspan(i, 1));
      all.insert(all.end(), part.begin(), part.end());
    }
    return on_device(all, modules.front() + ".bias");
  }

  const float* vector(const std::string& name, int64_t size) {
    return weights_.vector(name, std::array<int64_t, 1>{size}, 0);
  }

  const float* negative_exp(const std::string& name, int64_t size) {
    std::vector<float> values = weights_.host_vector(name, std::array<int64_t, 1>{size});
    for (float& value : values) value = -std::exp(value);
    return on_device(values, name);
  }

  /// A norm of the model's own kind; none for an empty name.
  Norm norm(const std::string& name, int64_t width) {
    return name.empty() ? Norm{} : any_norm(name, width, config_.zero_centred_norm ? 1.0f : 0.0f);
  }
  Norm plain_norm(const std::string& name, int64_t width) { return any_norm(name, width, 0); }
  Norm any_norm(const std::string& name, int64_t width, float add) {
    return {weights_.vector(name, std::array<int64_t, 1>{width}, add),
            static_cast<float>(config_.norm_eps)};
  }

  /// The frequencies of one kind of attention are stored once.
  Rope rope(const RopeConfig& config) {
    const std::vector<float> frequencies = rope_frequencies(config);
    if (frequencies.empty()) return {};
    const float*& stored = frequencies_[frequencies];
    if (!stored) stored = on_device(frequencies, "rotary frequencies");
    return {stored, config.rotary, 1};
  }

  float* state(int64_t size, const std::string& name) {
    return ops_.arena().allocate<float>(static_cast<size_t>(capacity_.slots * size),
                                        Category::kState, name);
  }

  const float* on_device(const std::vector<float>& values, const std::string& name) {
    auto* data = ops_.arena().allocate<float>(values.size(), Category::kMetadata, name);
    ops_.copy_in(data, values.data(), values.size() * sizeof(float));
    return data;
  }

  Ops& ops_;
  const ModelConfig& config_;
  WeightSource& weights_;
  const Capacity& capacity_;
  std::map<std::vector<float>, const float*> frequencies_;
};

}  // namespace

BoundModel bind_model(Ops& ops, const ModelConfig& config, WeightSource& weights,
                      const Capacity& capacity) {
  return Binder(ops, config, weights, capacity).bind();
}

}  // namespace cbench
