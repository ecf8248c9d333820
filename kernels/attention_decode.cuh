// Shared by the kernels of single rows' attention: what they are called with.
#pragma once

#include "attention_prepare.cuh"

namespace cbench::cuda {

struct DecodeProblem {
  const bf16* qkv;
  bf16* k;
  bf16* v;
  float* part;   // [rows, query_heads, splits, head_dim]
  float2* norm;  // [rows, query_heads, splits]: maximum and sum
  bf16* y;
  DeviceBatch batch;
  Norm q_norm, k_norm;
  Rope rope;
  int first, query_heads, kv_heads, head_dim, splits, pieces;  // pieces: blocks per kv head
  int64_t max_length, width;
  int window;  // positions that a row sees, itself included
  float scale, v_norm_eps;
  bool gated, step, k_is_v;
};

/// First position that a row sees.
__device__ __forceinline__ int first_seen(const DecodeProblem& p, int position) {
  return max(0, position - p.window + 1);
}

/// Heads of 64, 128, 256 or 512 in a step: the pieces on tensor cores (attention_step.cu). A block
/// takes up to kStepHeads query heads of a kv head.
constexpr int kStepHeads = 16;
bool attention_step_takes(const AttentionSpec& spec);
void attention_step_pieces(const DecodeProblem& problem, int64_t rows, cudaStream_t stream);

}  // namespace cbench::cuda
