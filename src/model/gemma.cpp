// Gemma 4: sliding and full attention with sizes of their own, norms before and after every part,
// an MLP and routed experts side by side. Source: the public Gemma 4 implementation in
// transformers.
#include <cmath>

#include "model/reader.h"
#include "util/text.h"

namespace cbench {
namespace {

/// One of the two kinds of attention; `rope_parameters` has an entry for each.
RopeConfig read_kind_rope(const ConfigReader& reader, bool full, int64_t head_dim) {
  const char* kind = full ? "full_attention" : "sliding_attention";
  double theta = full ? 1e6 : 1e4, partial = full ? 0.25 : 1.0;
  std::string type = full ? "proportional" : "default";
  double factor = 1;
  if (reader.find("rope_parameters")) {
    const ConfigReader rope = reader.object("rope_parameters").object(kind);
    theta = rope.number_or("rope_theta", 1, 1e12, theta);
    type = rope.text_or("rope_type", "default");
    partial = rope.number_or("partial_rotary_factor", 0, 1, 1);
    if (type == "proportional") factor = rope.number_or("factor", 1, 1e6, 1);
  }
  if (type != "default" && type != "proportional") {
    reader.unsupported("rope type \"" + printable(type) + "\"", "default, proportional");
  }
  // The `default` kind of this family turns the whole head, whatever the share.
  RopeConfig rope = plain_rope(reader, head_dim, theta, 1);
  rope.factor = factor;
  if (type == "proportional") {
    rope.turning = static_cast<int64_t>(static_cast<double>(head_dim) * partial / 2);
  }
  return rope;
}

AttentionConfig read_kind(const ConfigReader& reader, const ModelConfig& config, bool full) {
  AttentionConfig attention = read_attention(reader, config);
  attention.qk_norm = attention.v_norm = true;
  attention.scale = 1;
  if (full) {
    attention.head_dim = reader.integer_or("global_head_dim", 1, 4096, 512);
    attention.k_is_v = reader.boolean_or("attention_k_eq_v", false);
    if (attention.k_is_v) {
      attention.kv_heads =
          reader.integer_or("num_global_key_value_heads", 1, kMaxModelHeads, attention.kv_heads);
    }
    if (attention.query_heads % attention.kv_heads != 0) {
      reader.fail("num_attention_heads", "must be a multiple of num_global_key_value_heads");
    }
  } else {
    attention.window = reader.integer_or("sliding_window", 1, INT32_MAX, 512);
  }
  attention.rope = read_kind_rope(reader, full, attention.head_dim);
  return attention;
}

void read_experts(const ConfigReader& reader, MoeConfig& moe) {
  moe.experts = reader.integer("num_experts", 1, kMaxModelExperts);
  moe.top_k = reader.integer("top_k_experts", 1, kMaxModelExperts);
  moe.width = reader.integer("moe_intermediate_size", 1, kMaxModelWidth);
  moe.activation = ActivationKind::kGeluTanh;
  check_experts(reader, "top_k_experts", moe);
}

void name_block(const std::string& model_prefix, int64_t layer, BlockConfig& block) {
  block.layer = layer;
  block.prefix = model_prefix + "layers." + std::to_string(layer) + ".";
  const auto norm = [&](const char* name) { return block.prefix + name + "_layernorm.weight"; };
  block.mixer = MixerKind::kAttention;
  block.mixer_prefix = block.prefix + "self_attn.";
  block.mixer_norm = norm("input");
  block.mixer_out_norm = norm("post_attention");
  block.mlp.prefix = block.prefix + "mlp.";
  block.mlp.norm = norm("pre_feedforward");
  block.ff_out_norm = norm("post_feedforward");
  block.scale = block.prefix + "layer_scalar";
  if (block.moe.experts == 0) return;
  block.mlp.out_norm = block.prefix + "post_feedforward_layernorm_1.weight";
  block.moe.norm = block.prefix + "pre_feedforward_layernorm_2.weight";
  block.moe.out_norm = block.prefix + "post_feedforward_layernorm_2.weight";
  block.moe.prefix = block.prefix + "experts.";
  block.moe.router = block.prefix + "router.proj.weight";
  block.moe.router_norm = block.prefix + "router.scale";
  block.moe.expert_scale = block.prefix + "router.per_expert_scale";
}

/// "sliding_attention" and "full_attention", the last layer full; every sixth full when absent.
std::vector<bool> full_layers(const ConfigReader& reader, int64_t layers) {
  std::vector<bool> full;
  for (const std::string& type : reader.texts("layer_types", layers)) {
    if (type != "full_attention" && type != "sliding_attention") {
      reader.unsupported("layer type \"" + printable(type) + "\"",
                         "full_attention, sliding_attention");
    }
    full.push_back(type == "full_attention");
  }
  for (auto layer = static_cast<int64_t>(full.size()); layer < layers; ++layer) {
    full.push_back((layer + 1) % 6 == 0 || layer + 1 == layers);
  }
  if (!full.back()) reader.fail("layer_types", "must end with full_attention");
  return full;
}

void refuse_variants(const ConfigReader& reader) {
  reader.require_text("hidden_activation", "gelu_pytorch_tanh");
  reader.require_absent("num_kv_shared_layers", "layers that share keys and values");
  reader.require_absent("use_double_wide_mlp", "double-wide MLPs");
  reader.require_absent("per_layer_config", "layers with sizes of their own");
  if (reader.integer_or("hidden_size_per_layer_input", 0, kMaxModelWidth, 256) > 0) {
    reader.unsupported("\"hidden_size_per_layer_input\" above 0 (per-layer input embeddings)",
                       "models without them");
  }
  if (reader.text_or("use_bidirectional_attention", "") == "all") {
    reader.unsupported("\"use_bidirectional_attention\": \"all\"", "causal attention");
  }
}

}  // namespace

ModelConfig read_gemma(const ConfigReader& reader, const std::string& prefix) {
  ModelConfig config;
  config.architecture = "gemma4";
  config.prefix = prefix;
  refuse_variants(reader);
  read_sizes(reader, "rms_norm_eps", 1e-6, config);
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden));
  config.softcap = reader.number_or("final_logit_softcapping", 1e-3, 1e6, 0);
  BlockConfig common;
  common.mlp.width = reader.integer("intermediate_size", 1, kMaxModelWidth);
  common.mlp.activation = ActivationKind::kGeluTanh;
  if (reader.boolean_or("enable_moe_block", false)) read_experts(reader, common.moe);
  const AttentionConfig kinds[] = {read_kind(reader, config, false),
                                   read_kind(reader, config, true)};
  const int64_t layers = reader.integer("num_hidden_layers", 1, kMaxModelLayers);
  const std::vector<bool> full = full_layers(reader, layers);
  for (int64_t layer = 0; layer < layers; ++layer) {
    BlockConfig block = common;
    block.attention = kinds[full[static_cast<size_t>(layer)] ? 1 : 0];
    name_block(prefix, layer, block);
    config.blocks.push_back(std::move(block));
  }
  return config;
}

}  // namespace cbench
