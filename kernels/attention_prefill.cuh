// Shared by the kernels of many rows' attention.
#pragma once

#include "attention.h"
#include "device.cuh"

namespace cbench::cuda {

struct PrefillProblem {
  const bf16* q;
  const bf16* k;
  const bf16* v;
  const bf16* gate;  // qkv + head_dim, or null
  bf16* y;
  DeviceBatch batch;
  int query_heads, kv_heads;
  int64_t max_length, width;
  float scale_log2;  // scale * log2(e)
  int window;        // positions that a row sees, itself included
};

/// Heads of 64, 128, 256, 512 (attention_flash.cu).
bool attention_flash_takes(int64_t dim);
void attention_flash(const PrefillProblem& problem, int64_t dim, cudaStream_t stream);

}  // namespace cbench::cuda
