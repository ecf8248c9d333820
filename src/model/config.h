// A model as data: config.json of a checkpoint becomes a list of blocks. Each block has an optional
// mixer (attention, gated delta net, Mamba 2) and an optional feed-forward (MLP, routed experts, or
// both side by side), with their sizes and the checkpoint names of their tensors. What differs
// between families is written down here and nowhere else.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace cbench {

enum class MixerKind { kNone, kAttention, kDeltaNet, kMamba2 };
enum class ActivationKind { kSilu, kGeluTanh, kRelu2 };
/// Whether the activation multiplies a second product (act(gate) * up).
constexpr bool is_gated(ActivationKind activation) { return activation != ActivationKind::kRelu2; }

/// Rotary embedding of the first `rotary` dims of a head: pair i < turning turns by
/// theta^(-2i / rotary) a position, the other pairs do not turn.
struct RopeConfig {
  int64_t rotary = 0;   ///< 0 = none
  int64_t turning = 0;  ///< at most rotary / 2
  double theta = 10000;
  double factor = 1;  ///< divides frequencies: all of them, or as Llama 3 does (original > 0)
  double low = 1, high = 4;
  int64_t original = 0;
};

struct AttentionConfig {
  int64_t query_heads = 0, kv_heads = 0, head_dim = 0;
  bool gated = false;    ///< q_proj holds [q | gate] per head
  bool qk_norm = false;  ///< q_norm and k_norm over head_dim
  bool v_norm = false;   ///< RMS norm of v without a weight
  bool k_is_v = false;   ///< no v_proj: v is the output of k_proj
  bool bias = false, output_bias = false;
  double scale = 0;    ///< of the scores
  int64_t window = 0;  ///< a row sees itself and window - 1 rows before it; 0 = all
  RopeConfig rope;
  int64_t queries() const { return query_heads * head_dim; }
  int64_t keys() const { return kv_heads * head_dim; }
  int64_t in_rows() const { return queries() * (gated ? 2 : 1) + keys() * (k_is_v ? 1 : 2); }
};

struct DeltaNetConfig {
  int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, conv = 4;
  int64_t values() const { return value_heads * value_dim; }
  int64_t conv_rows() const { return 2 * key_heads * key_dim + values(); }
  int64_t in_rows() const { return conv_rows() + values() + 2 * value_heads; }
};

struct Mamba2Config {
  int64_t heads = 0, head_dim = 0, groups = 1, state = 0, conv = 4;
  bool conv_bias = true;
  bool bias = false;  ///< of in_proj and out_proj
  double dt_min = 0, dt_max = std::numeric_limits<double>::infinity();
  int64_t inner() const { return heads * head_dim; }
  int64_t conv_rows() const { return inner() + 2 * groups * state; }
  int64_t in_rows() const { return inner() + conv_rows() + heads; }
};

/// A dense MLP or a shared expert.
struct MlpConfig {
  int64_t width = 0;  ///< 0 = none
  ActivationKind activation = ActivationKind::kSilu;
  std::string prefix;    ///< "model.layers.3.mlp."
  std::string norm;      ///< of its input
  std::string out_norm;  ///< of its output, where the block sums normed branches; "" = none
  std::string gate;      ///< [1, hidden], its sigmoid scales a row's output; "" = none
};

/// Routed experts. The source model has `experts`, the package keeps `kept` (source ids).
struct MoeConfig {
  int64_t experts = 0;        ///< 0 = none
  std::vector<int64_t> kept;  ///< strictly increasing
  int64_t top_k = 0;
  int64_t width = 0;   ///< inner width of one expert
  int64_t latent = 0;  ///< width that the experts work in; 0 = the model's
  ActivationKind activation = ActivationKind::kSilu;
  bool sigmoid = false;  ///< scores are sigmoids, else a softmax
  int64_t groups = 1, kept_groups = 1;
  bool normalize = true;
  double scale = 1;
  std::string prefix;          ///< "model.layers.3.mlp.experts."
  std::string norm, out_norm;  ///< as of MlpConfig
  std::string router;          ///< [experts, hidden]
  std::string router_bias;     ///< [experts], for the choice only; "" = none
  /// [hidden]: the router's input is the residual stream, RMS-normalized with this weight times
  /// hidden^-0.5; "" = the router reads what the experts read.
  std::string router_norm;
  std::string expert_scale;           ///< [experts]; "" = none
  std::string latent_in, latent_out;  ///< with `latent`
  int64_t count() const { return static_cast<int64_t>(kept.size()); }
  /// The stacked matrices' canonical names, e.g. "model.layers.3.mlp.experts.gate_up_proj".
  std::string in_name() const {
    return prefix + (is_gated(activation) ? "gate_up_proj" : "up_proj");
  }
  std::string down_name() const { return prefix + "down_proj"; }
  int64_t in_rows() const { return is_gated(activation) ? 2 * width : width; }
};

/// One block: x += mixer(norm(x)), then x += feed_forward(x). Names are checkpoint tensor names.
struct BlockConfig {
  int64_t layer = 0;   ///< index in the source checkpoint
  std::string prefix;  ///< "model.layers.3."
  MixerKind mixer = MixerKind::kNone;
  std::string mixer_prefix;    ///< "model.layers.3.self_attn."
  std::string mixer_norm;      ///< of its input
  std::string mixer_out_norm;  ///< of its output; "" = none
  AttentionConfig attention;
  DeltaNetConfig delta;
  Mamba2Config mamba2;
  MlpConfig mlp;
  MoeConfig moe;
  std::string ff_out_norm;  ///< of the sum of the branches; "" = none
  std::string scale;        ///< [1], multiplies the residual stream at the block's end; "" = none
};

struct ModelConfig {
  std::string architecture;  ///< "qwen3_5", "gemma4", ...
  std::string prefix;        ///< "model." or "model.language_model."
  int64_t hidden = 0;
  int64_t vocab = 0;
  double norm_eps = 1e-6;
  bool zero_centred_norm = false;
  double embedding_scale = 1;
  double softcap = 0;  ///< logits become softcap * tanh(logits / softcap); 0 = none
  int64_t max_positions = 0;
  std::vector<BlockConfig> blocks;

  bool tied_embedding = false;
  std::string embedding = "embed_tokens.weight", final_norm = "norm.weight";  ///< behind `prefix`
  std::string head = "lm_head.weight";                                        ///< a whole name
  std::string embedding_name() const { return prefix + embedding; }
  std::string final_norm_name() const { return prefix + final_norm; }
  std::string head_name() const { return tied_embedding ? embedding_name() : head; }
};

/// Pruning that a package declares (package/manifest.h gives it). Layers and experts are the
/// source model's.
struct ModelOverrides {
  std::vector<int64_t> layers;                      ///< empty = all
  std::map<int64_t, int64_t> mlp_width;             ///< layer -> width of its MLP or shared expert
  std::map<int64_t, std::vector<int64_t>> experts;  ///< layer -> kept experts
};

/// Parses config.json. Throws UsageError ("config", "unsupported_model") naming the key and what is
/// supported. Accepts the text-only and the nested multimodal layouts.
ModelConfig parse_model_config(std::string_view json, std::string_view source);

/// Applies overrides; throws Error ("graph", exit 1) if they do not fit the model.
ModelConfig apply_overrides(const ModelConfig& config, const ModelOverrides& overrides);

/// Every matrix that the model multiplies by or embeds with: what a package may hand to its
/// plugin. Experts' matrices are one entry, `experts` times [rows, cols].
struct MatrixShape {
  std::string name;
  int64_t rows, cols;
  int64_t experts = 1;  ///< kept experts of a routed matrix
  int64_t active = 1;   ///< of these, how many serve a token
  bool routed = false;
  int64_t elements() const { return experts * rows * cols; }
};
std::vector<MatrixShape> model_matrices(const ModelConfig& config);

}  // namespace cbench
