// What follows from a ModelConfig: pruning overrides applied, and the list of its matrices.
#include <algorithm>

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

/// The block of a kept layer; `what` is given for it.
BlockConfig& block_of(ModelConfig& config, int64_t layer, const char* what) {
  for (BlockConfig& block : config.blocks) {
    if (block.layer == layer) return block;
  }
  graph_error(std::string(what) + " given for layer " + std::to_string(layer) +
              ", which is not a kept layer");
}

void narrow(BlockConfig& block, int64_t width) {
  const std::string layer = std::to_string(block.layer);
  if (block.mlp.width == 0) graph_error("layer " + layer + " has no MLP to narrow");
  if (width < 1 || width > block.mlp.width) {
    graph_error("MLP width " + std::to_string(width) + " of layer " + layer +
                " must lie between 1 and the model's " + std::to_string(block.mlp.width));
  }
  block.mlp.width = width;
}

void keep_experts(BlockConfig& block, const std::vector<int64_t>& kept) {
  MoeConfig& moe = block.moe;
  const std::string of_layer = " of layer " + std::to_string(block.layer);
  if (moe.experts == 0) {
    graph_error("layer " + std::to_string(block.layer) + " has no routed experts");
  }
  std::vector<int64_t> per_group(static_cast<size_t>(moe.groups));
  int64_t previous = -1;
  for (const int64_t expert : kept) {
    if (expert < 0 || expert >= moe.experts) {
      graph_error("expert " + std::to_string(expert) + of_layer + " does not exist; there are " +
                  std::to_string(moe.experts));
    }
    if (expert <= previous) graph_error("kept experts" + of_layer + " must rise strictly");
    previous = expert;
    ++per_group[static_cast<size_t>(expert / (moe.experts / moe.groups))];
  }
  const auto [least, most] = std::minmax_element(per_group.begin(), per_group.end());
  if (*least != *most || (moe.groups > 1 && *least < 2)) {
    graph_error("the kept experts" + of_layer + " must be equally many in each of the router's " +
                std::to_string(moe.groups) + " groups, two or more");
  }
  if (*least * moe.kept_groups < moe.top_k) {
    graph_error("the router" + of_layer + " chooses " + std::to_string(moe.top_k) +
                " experts a token, out of " + std::to_string(*least * moe.kept_groups) + " kept");
  }
  moe.kept = kept;
}

void add_mixer(const ModelConfig& config, const BlockConfig& block, std::vector<MatrixShape>& out) {
  const int64_t hidden = config.hidden;
  const auto add = [&](const char* name, int64_t rows, int64_t cols) {
    out.push_back({block.mixer_prefix + name + ".weight", rows, cols});
  };
  if (block.mixer == MixerKind::kAttention) {
    const AttentionConfig& a = block.attention;
    add("q_proj", a.gated ? 2 * a.queries() : a.queries(), hidden);
    add("k_proj", a.keys(), hidden);
    if (!a.k_is_v) add("v_proj", a.keys(), hidden);
    add("o_proj", hidden, a.queries());
  } else if (block.mixer == MixerKind::kDeltaNet) {
    const DeltaNetConfig& d = block.delta;
    add("in_proj_qkv", d.conv_rows(), hidden);
    add("in_proj_z", d.values(), hidden);
    add("in_proj_b", d.value_heads, hidden);
    add("in_proj_a", d.value_heads, hidden);
    add("out_proj", hidden, d.values());
  } else if (block.mixer == MixerKind::kMamba2) {
    add("in_proj", block.mamba2.in_rows(), hidden);
    add("out_proj", hidden, block.mamba2.inner());
  }
}

void add_feed_forward(const ModelConfig& config, const BlockConfig& block,
                      std::vector<MatrixShape>& out) {
  const MlpConfig& mlp = block.mlp;
  if (mlp.width > 0) {
    if (is_gated(mlp.activation)) {
      out.push_back({mlp.prefix + "gate_proj.weight", mlp.width, config.hidden});
    }
    out.push_back({mlp.prefix + "up_proj.weight", mlp.width, config.hidden});
    out.push_back({mlp.prefix + "down_proj.weight", config.hidden, mlp.width});
  }
  const MoeConfig& moe = block.moe;
  if (moe.experts == 0) return;
  const int64_t width = moe.latent > 0 ? moe.latent : config.hidden;
  if (moe.latent > 0) out.push_back({moe.latent_in, moe.latent, config.hidden});
  out.push_back({moe.in_name(), moe.in_rows(), width, moe.count(), moe.top_k, true});
  out.push_back({moe.down_name(), width, moe.width, moe.count(), moe.top_k, true});
  if (moe.latent > 0) out.push_back({moe.latent_out, config.hidden, moe.latent});
}

}  // namespace

ModelConfig apply_overrides(const ModelConfig& config, const ModelOverrides& overrides) {
  ModelConfig pruned = config;
  if (!overrides.layers.empty()) pruned.blocks = kept_blocks(config, overrides.layers);
  for (const auto& [layer, width] : overrides.mlp_width) {
    narrow(block_of(pruned, layer, "an MLP width is"), width);
  }
  for (const auto& [layer, kept] : overrides.experts) {
    keep_experts(block_of(pruned, layer, "kept experts are"), kept);
  }
  return pruned;
}

std::vector<MatrixShape> model_matrices(const ModelConfig& config) {
  std::vector<MatrixShape> matrices;
  matrices.push_back({config.embedding_name(), config.vocab, config.hidden});
  for (const BlockConfig& block : config.blocks) {
    add_mixer(config, block, matrices);
    add_feed_forward(config, block, matrices);
  }
  if (!config.tied_embedding) {
    matrices.push_back({config.head_name(), config.vocab, config.hidden});
  }
  return matrices;
}

}  // namespace cbench
