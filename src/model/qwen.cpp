// Qwen 3.5 (gated delta net and gated attention, dense or with routed experts), Qwen 3 and Llama.
#include "model/reader.h"
#include "util/text.h"

namespace cbench {
namespace {

DeltaNetConfig read_delta_net(const ConfigReader& reader) {
  DeltaNetConfig delta;
  delta.key_heads = reader.integer("linear_num_key_heads", 1, kMaxModelHeads);
  delta.value_heads = reader.integer("linear_num_value_heads", 1, kMaxModelHeads);
  delta.key_dim = reader.integer("linear_key_head_dim", 1, 4096);
  delta.value_dim = reader.integer("linear_value_head_dim", 1, 4096);
  delta.conv = reader.integer_or("linear_conv_kernel_dim", 2, 16, 4);
  if (delta.value_heads % delta.key_heads != 0) {
    reader.fail("linear_num_value_heads", "must be a multiple of linear_num_key_heads");
  }
  return delta;
}

/// The routed experts and the gated shared one of every layer.
void read_experts(const ConfigReader& reader, MlpConfig& shared, MoeConfig& moe) {
  moe.experts = reader.integer("num_experts", 1, kMaxModelExperts);
  moe.top_k = reader.integer("num_experts_per_tok", 1, kMaxModelExperts);
  moe.width = reader.integer("moe_intermediate_size", 1, kMaxModelWidth);
  if (!reader.boolean_or("norm_topk_prob", true)) {
    reader.unsupported("\"norm_topk_prob\": false", "normalized routing weights");
  }
  if (const Json* dense = reader.find("mlp_only_layers"); dense && !dense->empty()) {
    reader.unsupported("\"mlp_only_layers\"", "experts in every layer");
  }
  check_experts(reader, "num_experts_per_tok", moe);
  shared.width = reader.integer("shared_expert_intermediate_size", 1, kMaxModelWidth);
}

void name_feed_forward(const std::string& prefix, BlockConfig& block) {
  const std::string norm = block.prefix + "post_attention_layernorm.weight";
  block.mlp.norm = block.moe.norm = norm;
  block.mlp.prefix = prefix;
  if (block.moe.experts == 0) return;
  block.mlp.prefix = prefix + "shared_expert.";
  block.mlp.gate = prefix + "shared_expert_gate.weight";
  block.moe.prefix = prefix + "experts.";
  block.moe.router = prefix + "gate.weight";
}

MixerKind mixer_kind(const ConfigReader& reader, const std::string& name, bool hybrid) {
  if (name == "full_attention") return MixerKind::kAttention;
  if (name == "linear_attention" && hybrid) return MixerKind::kDeltaNet;
  reader.unsupported("layer type \"" + printable(name) + "\"",
                     hybrid ? "full_attention, linear_attention" : "full_attention");
}

void read_blocks(const ConfigReader& reader, bool hybrid, const BlockConfig& common,
                 ModelConfig& config) {
  const int64_t layers = reader.integer("num_hidden_layers", 1, kMaxModelLayers);
  const int64_t interval = reader.integer_or("full_attention_interval", 1, kMaxModelLayers, 4);
  const std::vector<std::string> types = reader.texts("layer_types", layers);
  for (int64_t layer = 0; layer < layers; ++layer) {
    BlockConfig block = common;
    block.layer = layer;
    block.prefix = config.prefix + "layers." + std::to_string(layer) + ".";
    block.mixer = MixerKind::kAttention;
    if (!types.empty()) {
      block.mixer = mixer_kind(reader, types[static_cast<size_t>(layer)], hybrid);
    } else if (hybrid && (layer + 1) % interval != 0) {
      block.mixer = MixerKind::kDeltaNet;
    }
    if (block.mixer == MixerKind::kDeltaNet) block.delta = read_delta_net(reader);
    block.mixer_prefix =
        block.prefix + (block.mixer == MixerKind::kDeltaNet ? "linear_attn." : "self_attn.");
    block.mixer_norm = block.prefix + "input_layernorm.weight";
    name_feed_forward(block.prefix + "mlp.", block);
    config.blocks.push_back(std::move(block));
  }
}

}  // namespace

ModelConfig read_qwen(const ConfigReader& reader, const std::string& type,
                      const std::string& prefix) {
  ModelConfig config;
  config.architecture = type.ends_with("_text") ? type.substr(0, type.size() - 5) : type;
  config.prefix = prefix;
  const bool hybrid = config.architecture.starts_with("qwen3_5");
  const bool routed = config.architecture == "qwen3_5_moe";
  reader.require_text("hidden_act", "silu");
  reader.require_absent("mlp_bias", "biases in the MLP");
  reader.require_absent("use_sliding_window", "sliding-window attention");
  read_sizes(reader, "rms_norm_eps", 1e-6, config);
  config.zero_centred_norm = hybrid;
  if (hybrid && !reader.boolean_or("attn_output_gate", true)) {
    reader.unsupported("\"attn_output_gate\": false", "gated attention outputs");
  }
  BlockConfig common;
  common.attention = read_attention(reader, config);
  common.attention.gated = hybrid;
  common.attention.qk_norm = hybrid || type == "qwen3";
  common.attention.rope = read_rope(reader, common.attention.head_dim, hybrid ? 0.25 : 1.0);
  if (routed) {
    read_experts(reader, common.mlp, common.moe);
  } else {
    reader.require_absent("num_experts", "mixture of experts");
    common.mlp.width = reader.integer("intermediate_size", 1, kMaxModelWidth);
  }
  read_blocks(reader, hybrid, common, config);
  return config;
}

}  // namespace cbench
