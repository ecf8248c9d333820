// Shared by the kernels of single rows' attention: what they are called with, and how a head of the
// new row is normalized and rotated.
#pragma once

#include "attention_value.cuh"

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

/// A head's values normalized, rotated and rounded as the cache holds them; by one warp, through
/// shared memory. `to` may be in global memory too.
__device__ inline void prepare_head(const bf16* from, const Norm& norm, const Rope& rope, int d,
                                    int position, float* x, bf16* shared_to, bf16* global_to) {
  const int lane = threadIdx.x % 32;
  float square = 0;
  for (int i = lane; i < d; i += 32) {
    x[i] = to_float(from[i]);
    square = fmaf(x[i], x[i], square);
  }
  if (norm.weight) {
    const float scale = rsqrtf(warp_sum(square) / static_cast<float>(d) + norm.eps);
    for (int i = lane; i < d; i += 32) x[i] *= scale * norm.weight[i];
  }
  __syncwarp();
  const auto put = [&](int i, float value) {
    const bf16 rounded = to_bf16(value);
    shared_to[i] = rounded;
    if (global_to) global_to[i] = rounded;
  };
  const int half = static_cast<int>(rope.rotary) / 2;
  for (int i = lane; i < half; i += 32) {
    float sine, cosine;
    sincosf(static_cast<float>(position) * rope.inv_freq[i], &sine, &cosine);
    sine *= rope.scale, cosine *= rope.scale;
    put(i, x[i] * cosine - x[i + half] * sine);
    put(i + half, x[i + half] * cosine + x[i] * sine);
  }
  for (int i = 2 * half + lane; i < d; i += 32) put(i, x[i]);
}

/// Heads of 64, 128, 256 or 512 in a step: the pieces on tensor cores (attention_step.cu). A block
/// takes up to kStepHeads query heads of a kv head.
constexpr int kStepHeads = 16;
bool attention_step_takes(const AttentionSpec& spec);
void attention_step_pieces(const DecodeProblem& problem, int64_t rows, cudaStream_t stream);

}  // namespace cbench::cuda
