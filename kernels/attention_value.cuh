// A new row's v of one head on its way to the cache, for the step and for many rows.
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

}  // namespace cbench::cuda
