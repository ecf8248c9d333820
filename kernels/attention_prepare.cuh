// A new row's q, k and v of one head on their way to the cache, for the step and for many rows.
#pragma once

#include "attention.h"
#include "device.cuh"

namespace cbench::cuda {

/// Copies a head's values, RMS-normalized without a weight if eps > 0; by one warp. `to` and `also`
/// may be null.
__device__ __forceinline__ void append_value(const bf16* from, int d, float eps, bf16* to,
                                             bf16* also) {
  const int lane = threadIdx.x % 32;
  float scale = 1;
  if (eps > 0) {
    float square = 0;
    for (int i = lane; i < d; i += 32) square = fmaf(to_float(from[i]), to_float(from[i]), square);
    scale = rsqrtf(warp_sum(square) / static_cast<float>(d) + eps);
  }
  for (int i = lane; i < d; i += 32) {
    const bf16 value = eps > 0 ? to_bf16(to_float(from[i]) * scale) : from[i];
    if (to) to[i] = value;
    if (also) also[i] = value;
  }
}

/// A head's q or k normalized, rotated and rounded as the cache holds them; by one warp, through
/// `x` [d] in shared memory. `also` may be null.
__device__ __forceinline__ void prepare_head(const bf16* from, const Norm& norm, const Rope& rope,
                                             int d, int position, float* x, bf16* to, bf16* also) {
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
    to[i] = rounded;
    if (also) also[i] = rounded;
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

}  // namespace cbench::cuda
