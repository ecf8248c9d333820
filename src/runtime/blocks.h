// The blocks of a model bound to their weights and caches.
#pragma once

#include <vector>

#include "runtime/model.h"

namespace cbench {

/// One transformer block, ready for the visitor in model.cpp.
struct Block {
  MixerKind mixer = MixerKind::kAttention;
  Norm input_norm, mlp_norm;
  Projection mixer_in;                ///< q | k | v, or qkv | z | b | a
  const float* mixer_bias = nullptr;  ///< [mixer_in.rows()]
  Linear mixer_out;
  const float* out_bias = nullptr;  ///< [hidden]
  AttentionSpec attention;
  KvCache cache;
  DeltaNetSpec delta;
  DeltaNetState state;
  Projection gate_up;
  Linear down;
  int64_t mixed_width() const;  ///< columns between mixer and mixer_out
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
