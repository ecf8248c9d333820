// Nemotron-H: every block has one part, a Mamba 2 or attention mixer or an MLP or routed experts;
// attention has no rotary embedding. Source: the public Nemotron-H implementation in transformers;
// the bounds of dt are time_step_limit's.
#include <tuple>

#include "model/reader.h"
#include "util/text.h"

namespace cbench {
namespace {

/// One letter per layer: M, *, -, E.
std::string layer_letters(const ConfigReader& reader) {
  const int64_t count = reader.integer_or("num_hidden_layers", 1, kMaxModelLayers, 0);
  std::string letters;
  for (const char* key : {"layers_block_type", "layer_types"}) {
    const Json* list = reader.find(key);
    if (!list || !letters.empty()) continue;
    if (!list->is_array()) reader.fail(key, "must be a list of strings");
    for (const std::string& name : reader.texts(key, static_cast<int64_t>(list->size()))) {
      const bool mamba = name == "mamba" || name == "linear_attention";
      const bool attention = name == "attention" || name == "full_attention";
      letters += mamba ? 'M' : attention ? '*' : name == "mlp" ? '-' : name == "moe" ? 'E' : '?';
      if (letters.back() == '?') {
        reader.unsupported("layer type \"" + printable(name) + "\"",
                           "mamba, attention, mlp, moe and their newer names");
      }
    }
  }
  if (letters.empty()) letters = reader.text_or("hybrid_override_pattern", "");
  const auto layers = static_cast<int64_t>(letters.size());
  if (layers < 1 || layers > kMaxModelLayers || letters.find_first_not_of("M*-E") != letters.npos) {
    reader.fail("hybrid_override_pattern", "must have 1 to " + std::to_string(kMaxModelLayers) +
                                               " letters out of M, *, - and E");
  }
  if (count != 0 && count != layers) {
    reader.fail("num_hidden_layers",
                "is not the number of layers listed, " + std::to_string(layers));
  }
  return letters;
}

Mamba2Config read_mamba(const ConfigReader& reader) {
  reader.require_text("mamba_hidden_act", "silu");
  Mamba2Config mamba;
  mamba.heads = reader.integer("mamba_num_heads", 1, kMaxModelHeads);
  mamba.head_dim = reader.integer("mamba_head_dim", 1, 4096);
  mamba.groups = reader.integer("n_groups", 1, kMaxModelHeads);
  mamba.state = reader.integer("ssm_state_size", 1, 4096);
  mamba.conv = reader.integer_or("conv_kernel", 2, 16, 4);
  mamba.conv_bias = reader.boolean_or("use_conv_bias", true);
  mamba.bias = reader.boolean_or("use_bias", false);
  if (mamba.heads % mamba.groups != 0) {
    reader.fail("mamba_num_heads", "must be a multiple of n_groups");
  }
  std::tie(mamba.dt_min, mamba.dt_max) = reader.limits("time_step_limit");
  return mamba;
}

AttentionConfig read_plain_attention(const ConfigReader& reader, const ModelConfig& config) {
  reader.require_absent("attention_bias", "biases in attention");
  reader.require_absent("sliding_window", "sliding-window attention");
  return read_attention(reader, config);
}

/// The routed experts; the shared one always runs and has no gate.
void read_experts(const ConfigReader& reader, MlpConfig& shared, MoeConfig& moe) {
  moe.experts = reader.integer("n_routed_experts", 1, kMaxModelExperts);
  moe.top_k = reader.integer("num_experts_per_tok", 1, kMaxModelExperts);
  moe.width = reader.integer("moe_intermediate_size", 1, kMaxModelWidth);
  moe.latent = reader.integer_or("moe_latent_size", 1, kMaxModelWidth, 0);
  moe.activation = ActivationKind::kRelu2;
  moe.sigmoid = true;
  moe.groups = reader.integer_or("n_group", 1, kMaxModelExperts, 1);
  moe.kept_groups = reader.integer_or("topk_group", 1, kMaxModelExperts, 1);
  moe.normalize = reader.boolean_or("norm_topk_prob", true);
  moe.scale = reader.number_or("routed_scaling_factor", 0, 1e6, 1);
  check_experts(reader, "num_experts_per_tok", moe);
  if (reader.integer_or("n_shared_experts", 0, kMaxModelExperts, 1) != 1) {
    reader.unsupported("\"n_shared_experts\" other than 1", "one shared expert");
  }
  shared.width = reader.integer("moe_shared_expert_intermediate_size", 1, kMaxModelWidth);
  shared.activation = ActivationKind::kRelu2;
}

/// A block with routed experts, their names filled in.
void name_experts(const std::string& norm, BlockConfig& block) {
  const std::string mixer = block.prefix + "mixer.";
  block.mlp.prefix = mixer + "shared_experts.";
  block.mlp.norm = block.moe.norm = norm;
  block.moe.prefix = mixer + "experts.";
  block.moe.router = mixer + "gate.weight";
  block.moe.router_bias = mixer + "gate.e_score_correction_bias";
  if (block.moe.latent > 0) {
    block.moe.latent_in = mixer + "fc1_latent_proj.weight";
    block.moe.latent_out = mixer + "fc2_latent_proj.weight";
  }
}

BlockConfig read_block(const ConfigReader& reader, const ModelConfig& config, int64_t layer,
                       char letter) {
  BlockConfig block;
  block.layer = layer;
  block.prefix = config.prefix + "layers." + std::to_string(layer) + ".";
  const std::string norm = block.prefix + "norm.weight";
  if (letter == 'M' || letter == '*') {
    block.mixer = letter == 'M' ? MixerKind::kMamba2 : MixerKind::kAttention;
    block.mixer_prefix = block.prefix + "mixer.";
    block.mixer_norm = norm;
    if (letter == 'M') {
      block.mamba2 = read_mamba(reader);
    } else {
      block.attention = read_plain_attention(reader, config);
    }
  } else if (letter == '-') {
    block.mlp.width = reader.integer("intermediate_size", 1, kMaxModelWidth);
    block.mlp.activation = ActivationKind::kRelu2;
    block.mlp.prefix = block.prefix + "mixer.";
    block.mlp.norm = norm;
  } else {
    read_experts(reader, block.mlp, block.moe);
    name_experts(norm, block);
  }
  return block;
}

}  // namespace

ModelConfig read_nemotron(const ConfigReader& reader, const std::string& prefix) {
  ModelConfig config;
  config.architecture = "nemotron_h";
  config.prefix = prefix + "backbone.";
  config.embedding = "embeddings.weight";
  config.final_norm = "norm_f.weight";
  config.head = prefix + "lm_head.weight";
  config.tied_embedding = reader.boolean_or("tie_word_embeddings", false);
  reader.require_text("mlp_hidden_act", "relu2");
  reader.require_absent("mlp_bias", "biases in the MLP");
  const bool older = reader.find("layer_norm_epsilon") == nullptr;
  read_sizes(reader, older ? "norm_eps" : "layer_norm_epsilon", 1e-5, config);
  const std::string letters = layer_letters(reader);
  for (size_t i = 0; i < letters.size(); ++i) {
    config.blocks.push_back(read_block(reader, config, static_cast<int64_t>(i), letters[i]));
  }
  return config;
}

}  // namespace cbench
