// What follows from a ModelConfig: pruning overrides applied, and the list of its matrices.
#include "model/config.h"
#include "util/error.h"

namespace cbench {
namespace {

[[noreturn]] void graph_error(const std::string& message) {
  throw Error(Exit::kGateFailed, "graph", "graph overrides: " + message);
}

std::vector<BlockConfig> kept_blocks(const ModelConfig& config,
                                     const std::vector<int64_t>& layers) {
  std::vector<BlockConfig> kept;
  int64_t previous = -1;
  for (const int64_t layer : layers) {
    if (layer < 0 || layer >= static_cast<int64_t>(config.blocks.size())) {
      graph_error("layer " + std::to_string(layer) + " does not exist; the model has layers 0 to " +
                  std::to_string(config.blocks.size() - 1));
    }
    if (layer <= previous) graph_error("kept layers must be listed once each, in rising order");
    kept.push_back(config.blocks[static_cast<size_t>(layer)]);
    previous = layer;
  }
  return kept;
}

void add_mixer(const ModelConfig& config, const BlockConfig& block, std::vector<MatrixShape>& out) {
  const int64_t hidden = config.hidden;
  if (block.mixer == MixerKind::kDeltaNet) {
    const std::string prefix = block.prefix + "linear_attn.";
    const int64_t values = config.value_heads * config.value_dim;
    out.push_back(
        {prefix + "in_proj_qkv.weight", 2 * config.key_heads * config.key_dim + values, hidden});
    out.push_back({prefix + "in_proj_z.weight", values, hidden});
    out.push_back({prefix + "in_proj_b.weight", config.value_heads, hidden});
    out.push_back({prefix + "in_proj_a.weight", config.value_heads, hidden});
    out.push_back({prefix + "out_proj.weight", hidden, values});
    return;
  }
  const std::string prefix = block.prefix + "self_attn.";
  const int64_t queries = config.query_heads * config.head_dim;
  const int64_t keys = config.kv_heads * config.head_dim;
  out.push_back({prefix + "q_proj.weight", config.gated_attention ? 2 * queries : queries, hidden});
  out.push_back({prefix + "k_proj.weight", keys, hidden});
  out.push_back({prefix + "v_proj.weight", keys, hidden});
  out.push_back({prefix + "o_proj.weight", hidden, queries});
}

}  // namespace

ModelConfig apply_overrides(const ModelConfig& config, const ModelOverrides& overrides) {
  ModelConfig pruned = config;
  if (!overrides.layers.empty()) pruned.blocks = kept_blocks(config, overrides.layers);
  for (const auto& [layer, width] : overrides.mlp_width) {
    BlockConfig* block = nullptr;
    for (BlockConfig& candidate : pruned.blocks) {
      if (candidate.layer == layer) block = &candidate;
    }
    if (!block) {
      graph_error("an MLP width is given for layer " + std::to_string(layer) +
                  ", which is not a kept layer");
    }
    if (width < 1 || width > block->mlp_width) {
      graph_error("MLP width " + std::to_string(width) + " of layer " + std::to_string(layer) +
                  " must lie between 1 and the model's " + std::to_string(block->mlp_width));
    }
    block->mlp_width = width;
  }
  return pruned;
}

std::vector<MatrixShape> model_matrices(const ModelConfig& config) {
  std::vector<MatrixShape> matrices;
  matrices.push_back({config.embedding_name(), config.vocab, config.hidden});
  for (const BlockConfig& block : config.blocks) {
    add_mixer(config, block, matrices);
    matrices.push_back({block.prefix + "mlp.gate_proj.weight", block.mlp_width, config.hidden});
    matrices.push_back({block.prefix + "mlp.up_proj.weight", block.mlp_width, config.hidden});
    matrices.push_back({block.prefix + "mlp.down_proj.weight", config.hidden, block.mlp_width});
  }
  if (!config.tied_embedding) {
    matrices.push_back({config.head_name(), config.vocab, config.hidden});
  }
  return matrices;
}

}  // namespace cbench
