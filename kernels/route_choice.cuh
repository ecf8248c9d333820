// The choice of a row's experts from their scores, by one warp: keys that order as the scores do, a
// bound that at least top_k experts reach, and a ranking of those that reach it. Equals the choice
// of the CPU's route.
#pragma once

#include "device.cuh"
#include "experts.h"

namespace cbench::cuda {

constexpr uint32_t kTaken = 0, kLeftOut = 1;

struct Choice {
  const float* logits;
  RouterSpec spec;
  Routing routing;
  int rows;
};

/// Orders as the value does, above kLeftOut; NaN comes last.
__device__ __forceinline__ uint32_t key_of(float value) {
  if (isnan(value)) return kLeftOut + 1;
  const uint32_t bits = __float_as_uint(value);
  return max(bits & 0x80000000u ? ~bits : bits | 0x80000000u, kLeftOut + 1);
}
__device__ __forceinline__ float value_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/// Best of keys[from + lane], keys[from + lane + 32], ... below `end`, lowest index on ties.
struct Best {
  uint32_t key = kTaken;
  int index = INT32_MAX;
  __device__ void scan(const uint32_t* keys, int from, int end) {
    key = kTaken, index = INT32_MAX;
    for (int e = from + static_cast<int>(threadIdx.x % 32); e < end; e += 32)
      if (keys[e] > key) key = keys[e], index = e;
  }
  /// The warp's best index.
  __device__ int of_warp() const {
    const uint32_t top = __reduce_max_sync(~0u, key);
    return static_cast<int>(
        __reduce_min_sync(~0u, key == top ? static_cast<unsigned>(index) : unsigned{INT32_MAX}));
  }
};

/// Leaves out the experts of all but the best groups. A group's worth: the sum of its two best.
__device__ inline void keep_groups(const RouterSpec& spec, uint32_t* keys) {
  const int lane = threadIdx.x % 32, groups = static_cast<int>(spec.groups);
  const int size = static_cast<int>(spec.experts) / groups;
  uint32_t worth = kTaken;
  for (int g = 0; g < groups; g++) {
    Best best;
    best.scan(keys, g * size, (g + 1) * size);
    const int first = best.of_warp();
    const uint32_t first_key = keys[first];
    __syncwarp();
    if (lane == 0) keys[first] = kTaken;
    __syncwarp();
    best.scan(keys, g * size, (g + 1) * size);
    const int second = best.of_warp();
    const float sum =
        value_of(first_key) + (size > 1 ? value_of(keys[min(second, (g + 1) * size - 1)]) : 0.f);
    __syncwarp();
    if (lane == 0) keys[first] = first_key;
    __syncwarp();
    if (lane == g) worth = key_of(sum);
  }
  int better = 0;
  for (int g = 0; g < groups; g++) {
    const uint32_t other = __shfl_sync(~0u, worth, g);
    if (other > worth || (other == worth && g < lane)) better++;
  }
  const unsigned kept = __ballot_sync(~0u, lane < groups && better < spec.kept_groups);
  for (int e = lane; e < groups * size; e += 32)
    if (!(kept >> (e / size) & 1)) keys[e] = kLeftOut;
  __syncwarp();
}

constexpr int kChoiceWords = 3;  // of shared memory per expert and row

/// A lane's scores of one row from its logits, which may come from other blocks of the running
/// kernel.
template <int kPer>
__device__ __forceinline__ void scores_of(const Choice& p, int row, float (&value)[kPer]) {
  const int lane = threadIdx.x % 32, experts = static_cast<int>(p.spec.experts);
  const float* logits = p.logits + static_cast<size_t>(row) * experts;
#pragma unroll
  for (int i = 0; i < kPer; i++)
    value[i] = i * 32 + lane < experts ? __ldcg(logits + i * 32 + lane) : -INFINITY;
  if (p.spec.score == RouterSpec::Score::kSigmoid) {
#pragma unroll
    for (int i = 0; i < kPer; i++) value[i] = 1.f / (1.f + expf(-value[i]));
    return;
  }
  float top = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < kPer; i++) top = fmaxf(top, value[i]);
  top = warp_max(top);
#pragma unroll
  for (int i = 0; i < kPer; i++) sum += value[i] = expf(value[i] - top);
  sum = warp_sum(sum);
#pragma unroll
  for (int i = 0; i < kPer; i++) value[i] /= sum;
}

/// A key that at least top_k experts reach: the top_k-th best of the lanes' bests.
template <int kPer>
__device__ __forceinline__ uint32_t reached_by(const uint32_t (&held)[kPer], int top_k) {
  const int lane = threadIdx.x % 32;
  if (top_k > 32) return kTaken + 1;
  uint32_t best = kTaken;
#pragma unroll
  for (int i = 0; i < kPer; i++) best = max(best, held[i]);
  int better = 0;
#pragma unroll
  for (int j = 0; j < 32; j++) {
    const uint32_t other = __shfl_sync(~0u, best, j);
    better += other > best || (other == best && j < lane);
  }
  const unsigned last = __ballot_sync(~0u, better == top_k - 1);
  return max(kTaken + 1, __shfl_sync(~0u, best, __ffs(last) - 1));
}

/// The best experts among those that reach `bound`, by ranking them against each other. `keys` and
/// `index` are shared memory for all experts.
template <int kPer>
__device__ __forceinline__ void rank_candidates(const uint32_t (&held)[kPer], uint32_t bound,
                                                uint32_t* keys, int32_t* index, int top_k,
                                                int32_t* chosen) {
  const int lane = threadIdx.x % 32;
  int count = 0;  // in the order of their index
#pragma unroll
  for (int i = 0; i < kPer; i++) {
    const unsigned reach = __ballot_sync(~0u, held[i] >= bound);
    if (held[i] >= bound) {
      const int at = count + __popc(reach & ((1u << lane) - 1));
      keys[at] = held[i], index[at] = i * 32 + lane;
    }
    count += __popc(reach);
  }
  __syncwarp();
  for (int c = lane; c < count; c += 32) {
    const uint32_t mine = keys[c];
    int rank = 0;
#pragma unroll 4
    for (int j = 0; j < count; j++) rank += keys[j] > mine || (keys[j] == mine && j < c);
    if (rank < top_k) chosen[rank] = index[c];
  }
  __syncwarp();
}

/// One row by one warp; a lane has kPer experts, 32 apart.
template <int kPer>
__device__ void choose(const Choice& p, int row, float* shared) {
  const int lane = threadIdx.x % 32, experts = static_cast<int>(p.spec.experts);
  const int top_k = static_cast<int>(p.spec.top_k);
  float* scores = shared;
  auto* keys = reinterpret_cast<uint32_t*>(scores + experts);
  auto* index = reinterpret_cast<int32_t*>(keys + experts);
  float value[kPer];
  scores_of(p, row, value);
  uint32_t held[kPer];
#pragma unroll
  for (int i = 0; i < kPer; i++) {
    const int e = i * 32 + lane;
    const float bias =
        p.spec.selection_bias && e < experts ? __ldg(p.spec.selection_bias + e) : 0.f;
    held[i] = e < experts ? key_of(value[i] + bias) : kTaken;
    if (e < experts) scores[e] = value[i], keys[e] = held[i];
  }
  __syncwarp();
  if (p.spec.kept_groups < p.spec.groups) {
    keep_groups(p.spec, keys);
#pragma unroll
    for (int i = 0; i < kPer; i++)
      if (i * 32 + lane < experts) held[i] = keys[i * 32 + lane];
    __syncwarp();
  }
  int32_t* chosen = p.routing.expert + static_cast<size_t>(row) * top_k;
  rank_candidates(held, reached_by(held, top_k), keys, index, top_k, chosen);

  float total = 0;
  for (int slot = lane; slot < top_k; slot += 32) total += scores[chosen[slot]];
  total = warp_sum(total) + 1e-20f;  // keeps a row whose scores all underflowed finite
  const float scale = p.spec.normalize ? p.spec.scale / total : p.spec.scale;
  for (int slot = lane; slot < top_k; slot += 32) {
    const int e = chosen[slot];
    p.routing.weight[static_cast<size_t>(row) * top_k + slot] =
        scores[e] * scale * (p.spec.expert_scale ? p.spec.expert_scale[e] : 1.f);
  }
}

}  // namespace cbench::cuda
