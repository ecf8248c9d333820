// The blocks of a model bound to their weights and caches.
#pragma once

#include <optional>
#include <vector>

#include "runtime/model.h"

namespace cbench {

/// Mixes along the sequence: in, mix, out. A norm with a null weight is none.
struct Mixer {
  MixerKind kind = MixerKind::kNone;
  Norm norm;
  Projection in;                ///< what the mixing op reads, side by side
  const float* bias = nullptr;  ///< [in.rows()]
  AttentionSpec attention;
  KvCache cache;
  DeltaNetSpec delta;
  DeltaNetState delta_state;
  Mamba2Spec mamba2;
  Mamba2State mamba2_state;
  Projection out;                   ///< one part
  const float* out_bias = nullptr;  ///< [hidden]
  Norm out_norm;                    ///< of what is added to the residual stream
};

/// A dense MLP, or the expert that serves every row.
struct Mlp {
  Norm norm;
  Activation activation = Activation::kSilu;
  Projection up;                ///< gate and up, or up alone
  Projection down;              ///< one part
  const float* gate = nullptr;  ///< [hidden]: its sigmoid with a row scales the output
  Norm out_norm;
  int64_t width() const { return down.cols(); }
};

/// Routed experts.
struct Moe {
  Norm norm;
  Norm router_norm;  ///< the router's own view of the residual stream; null: reads norm's
  RouterSpec router;
  Projection latent_in;  ///< empty: the experts work in the model's width
  ExpertsSpec experts;
  Linear latent_out;
  Norm out_norm;
  bool latent() const { return !latent_in.parts.empty(); }
  int64_t width() const { return experts.down.rows; }  ///< what the experts work in
};

/// An MLP, routed experts, or both side by side on the same input.
struct FeedForward {
  std::optional<Mlp> mlp;
  std::optional<Moe> moe;
  Norm out_norm;    ///< of the branches' sum; then the branches have norms of their own, or are one
  float scale = 1;  ///< of the residual stream at the end; with out_norm
};

/// One block, ready for the visitor in model.cpp.
struct Block {
  std::optional<Mixer> mixer;
  std::optional<FeedForward> feed_forward;
};

struct BoundModel {
  Linear embedding;
  Linear head;
  Norm final_norm;
  std::vector<Block> blocks;
};

/// Binds `config` to `weights` and allocates caches for `capacity`.
BoundModel bind_model(Ops& ops, const ModelConfig& config, WeightSource& weights,
                      const Capacity& capacity);

}  // namespace cbench
