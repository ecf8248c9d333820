// Full attention of the CPU backend: q/k norms, rotary embedding, cache, causal softmax, gate.
//
// Long spans use streaming softmax over blocks of 64 queries x 64 keys (as in FlashAttention, Dao
// et al. 2022), so scores never leave the cache; short ones take one dot product per key.
#pragma once

#include <vector>

#include "runtime/cpu/batch.h"
#include "runtime/ops.h"

namespace cbench::cpu {

/// cos and sin [T, rotary / 2] of the current batch's positions, shared by the layers with `rope`.
struct RotaryTable {
  Rope rope;
  float* cos = nullptr;
  float* sin = nullptr;
  bool stale = true;  ///< the positions changed
  void compute(const CurrentBatch& batch);
};

/// Floats of scratch that one thread needs for `spec` with caches of `max_length`.
int64_t attention_scratch(const AttentionSpec& spec, int64_t max_length);

/// Shapes as in Ops::attention.
void attention(const AttentionSpec& spec, const KvCache& cache, const CurrentBatch& batch,
               const RotaryTable& table, const ThreadScratch& scratch, const float* qkv, float* y);

}  // namespace cbench::cpu
