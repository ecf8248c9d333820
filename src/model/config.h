// A model as data: config.json of a checkpoint becomes a list of blocks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace cbench {

enum class MixerKind { kAttention, kDeltaNet };

/// One transformer block: norm, mixer, norm, gated MLP. Names are checkpoint tensor names.
struct BlockConfig {
  int64_t layer = 0;   ///< index in the source checkpoint
  std::string prefix;  ///< "model.layers.3."
  MixerKind mixer = MixerKind::kAttention;
  int64_t mlp_width = 0;
};

struct ModelConfig {
  std::string architecture;  ///< "qwen3_5", "qwen3", "llama"
  std::string prefix;        ///< "model." or "model.language_model."
  int64_t hidden = 0;
  int64_t vocab = 0;
  double norm_eps = 1e-6;
  bool zero_centred_norm = false;
  bool tied_embedding = false;
  int64_t max_positions = 0;

  // Attention
  int64_t query_heads = 0, kv_heads = 0, head_dim = 0;
  bool gated_attention = false, qk_norm = false, attention_bias = false, output_bias = false;
  double rope_theta = 10000;
  double partial_rotary = 1;
  /// Llama 3 frequency scaling (rope_type "llama3"); factor 1 = none.
  double rope_factor = 1, rope_low = 1, rope_high = 4;
  int64_t rope_original = 0;

  // Gated delta net
  int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, conv = 4;

  std::vector<BlockConfig> blocks;

  std::string embedding_name() const { return prefix + "embed_tokens.weight"; }
  std::string final_norm_name() const { return prefix + "norm.weight"; }
  std::string head_name() const { return tied_embedding ? embedding_name() : "lm_head.weight"; }
};

/// Pruning that a package declares (package/manifest.h gives it): kept layers, MLP widths.
struct ModelOverrides {
  std::vector<int64_t> layers;           ///< empty = all
  std::map<int64_t, int64_t> mlp_width;  ///< source layer -> width
};

/// Parses config.json. Throws UsageError ("config", "unsupported_model") naming the key and what is
/// supported. Accepts the text-only and the nested multimodal layout.
ModelConfig parse_model_config(std::string_view json, std::string_view source);

/// Applies overrides; throws Error ("graph", exit 1) if they do not fit the model.
ModelConfig apply_overrides(const ModelConfig& config, const ModelOverrides& overrides);

/// Every matrix (tensor name -> rows, cols) that the model multiplies by or embeds with: what a
/// package may hand to its plugin.
struct MatrixShape {
  std::string name;
  int64_t rows, cols;
};
std::vector<MatrixShape> model_matrices(const ModelConfig& config);

}  // namespace cbench
