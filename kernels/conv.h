// Causal depthwise convolution with SiLU over a packed batch, with its state: the first step of a
// gated delta net (q|k|v, with the L2 norm of q and k) and of Mamba 2 (x|B|C, with a bias).
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "batch.h"

namespace cbench::cuda {

struct ConvCall {
  const void* in = nullptr;       ///< the first channel of [T, ...] BF16, rows `width` apart
  void* out = nullptr;            ///< [T, channels] BF16
  const float* weight = nullptr;  ///< [channels, taps] fp32
  const float* bias = nullptr;    ///< [channels] fp32, or null
  float* state = nullptr;         ///< [slots, channels, taps - 1] fp32, oldest first
  DeviceBatch batch;
  int64_t channels = 0, taps = 4, width = 0;
  /// The first 2 * key_heads * key_dim channels are heads whose outputs are L2-normalized, the
  /// first half of them also times key_dim^-0.5. The others are taken value_dim at a time.
  int64_t key_heads = 0, key_dim = 0, value_dim = 128;
};
/// out = SiLU(convolution + bias).
void conv(const ConvCall& call, cudaStream_t stream);
/// The state after the batch; after conv, which reads the old one.
void conv_state(const ConvCall& call, cudaStream_t stream);

}  // namespace cbench::cuda
