// Binds the blocks of a model.
#include "runtime/blocks.h"

#include <array>
#include <cmath>

#include "runtime/rope.h"

namespace cbench {
namespace {

class Binder {
 public:
  Binder(Ops& ops, const ModelConfig& config, WeightSource& weights, const Capacity& capacity)
      : ops_(ops), config_(config), weights_(weights), capacity_(capacity) {}

  BoundModel bind() {
    BoundModel model;
    model.embedding = weights_.matrix(config_.embedding_name(), config_.vocab, config_.hidden,
                                      Category::kEmbedding);
    inv_freq_ = on_device(rope_frequencies(config_), Category::kMetadata, "rotary frequencies");
    for (const BlockConfig& block : config_.blocks) model.blocks.push_back(bind_block(block));
    model.final_norm = norm(config_.final_norm_name(), config_.hidden, config_.zero_centred_norm);
    model.head = config_.tied_embedding ? model.embedding
                                        : weights_.matrix(config_.head_name(), config_.vocab,
                                                          config_.hidden, Category::kEmbedding);
    return model;
  }

 private:
  Block bind_block(const BlockConfig& config) {
    Block block;
    block.mixer = config.mixer;
    const bool centred = config_.zero_centred_norm;
    block.input_norm = norm(config.prefix + "input_layernorm.weight", config_.hidden, centred);
    block.mlp_norm =
        norm(config.prefix + "post_attention_layernorm.weight", config_.hidden, centred);
    if (config.mixer == MixerKind::kAttention) {
      bind_attention(config.prefix + "self_attn.", block);
    } else {
      bind_delta_net(config.prefix + "linear_attn.", block);
    }
    const std::string mlp = config.prefix + "mlp.";
    const std::array<std::string, 2> names = {mlp + "gate_proj.weight", mlp + "up_proj.weight"};
    const std::array<int64_t, 2> rows = {config.mlp_width, config.mlp_width};
    block.gate_up = weights_.projection(names, rows, config_.hidden);
    block.down = weights_.matrix(mlp + "down_proj.weight", config_.hidden, config.mlp_width,
                                 Category::kWeights);
    return block;
  }

  void bind_attention(const std::string& prefix, Block& block) {
    AttentionSpec& spec = block.attention;
    spec.query_heads = config_.query_heads;
    spec.kv_heads = config_.kv_heads;
    spec.head_dim = config_.head_dim;
    spec.gated = config_.gated_attention;
    spec.scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
    spec.rope.inv_freq = inv_freq_;
    spec.rope.rotary = 2 * static_cast<int64_t>(rope_frequencies(config_).size());
    if (config_.qk_norm) {
      spec.q_norm = norm(prefix + "q_norm.weight", spec.head_dim, config_.zero_centred_norm);
      spec.k_norm = norm(prefix + "k_norm.weight", spec.head_dim, config_.zero_centred_norm);
    }
    const int64_t queries = spec.query_heads * spec.head_dim, keys = spec.kv_heads * spec.head_dim;
    const std::array<std::string, 3> names = {prefix + "q_proj", prefix + "k_proj",
                                              prefix + "v_proj"};
    const std::array<int64_t, 3> rows = {spec.gated ? 2 * queries : queries, keys, keys};
    block.mixer_in = project(names, rows);
    if (config_.attention_bias) block.mixer_bias = bias(names, rows);
    block.mixer_out =
        weights_.matrix(prefix + "o_proj.weight", config_.hidden, queries, Category::kWeights);
    if (config_.output_bias) {
      block.out_bias = bias(std::array{prefix + "o_proj"}, std::array{config_.hidden});
    }
    const int64_t bytes = capacity_.slots * capacity_.max_length * keys * ops_.activation_bytes();
    block.cache.k = ops_.arena().allocate(static_cast<size_t>(bytes), Category::kKv, prefix + "k");
    block.cache.v = ops_.arena().allocate(static_cast<size_t>(bytes), Category::kKv, prefix + "v");
    block.cache.max_length = capacity_.max_length;
  }

  void bind_delta_net(const std::string& prefix, Block& block) {
    DeltaNetSpec& spec = block.delta;
    spec.key_heads = config_.key_heads;
    spec.value_heads = config_.value_heads;
    spec.key_dim = config_.key_dim;
    spec.value_dim = config_.value_dim;
    spec.conv = config_.conv;
    const std::array<int64_t, 1> per_head = {spec.value_heads};
    const std::array<int64_t, 3> taps = {spec.conv_rows(), 1, spec.conv};
    spec.conv_weight = weights_.vector(prefix + "conv1d.weight", taps, 0);
    spec.dt_bias = weights_.vector(prefix + "dt_bias", per_head, 0);
    std::vector<float> decay = weights_.host_vector(prefix + "A_log", per_head);
    for (float& value : decay) value = -std::exp(value);
    spec.neg_exp_a = on_device(decay, Category::kMetadata, prefix + "A_log");
    spec.out_norm = norm(prefix + "norm.weight", spec.value_dim, false);
    const int64_t values = spec.value_heads * spec.value_dim;
    const std::array<std::string, 4> names = {prefix + "in_proj_qkv", prefix + "in_proj_z",
                                              prefix + "in_proj_b", prefix + "in_proj_a"};
    const std::array<int64_t, 4> rows = {spec.conv_rows(), values, spec.value_heads,
                                         spec.value_heads};
    block.mixer_in = project(names, rows);
    block.mixer_out =
        weights_.matrix(prefix + "out_proj.weight", config_.hidden, values, Category::kWeights);
    const int64_t conv = capacity_.slots * spec.conv_rows() * (spec.conv - 1);
    const int64_t recurrent = capacity_.slots * values * spec.key_dim;
    block.state.conv = ops_.arena().allocate<float>(static_cast<size_t>(conv), Category::kState,
                                                    prefix + "convolution state");
    block.state.recurrent = ops_.arena().allocate<float>(static_cast<size_t>(recurrent),
                                                         Category::kState, prefix + "state");
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
    return on_device(all, Category::kMetadata, modules.front() + ".bias");
  }

  Norm norm(const std::string& name, int64_t width, bool centred) {
    const std::array<int64_t, 1> shape = {width};
    return {weights_.vector(name, shape, centred ? 1.0f : 0.0f),
            static_cast<float>(config_.norm_eps)};
  }

  const float* on_device(const std::vector<float>& values, Category category,
                         const std::string& name) {
    auto* data = ops_.arena().allocate<float>(values.size(), category, name);
    ops_.copy_in(data, values.data(), values.size() * sizeof(float));
    return data;
  }

  Ops& ops_;
  const ModelConfig& config_;
  WeightSource& weights_;
  const Capacity& capacity_;
  const float* inv_freq_ = nullptr;
};

}  // namespace

int64_t Block::mixed_width() const { return mixer_out.inputs(); }

BoundModel bind_model(Ops& ops, const ModelConfig& config, WeightSource& weights,
                      const Capacity& capacity) {
  return Binder(ops, config, weights, capacity).bind();
}

}  // namespace cbench
