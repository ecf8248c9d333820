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

/// Context positions of a tile.
constexpr int kPrefillContext = 64;

/// What a block works on: up to 64 rows of a span, and one query head.
struct PrefillTile {
  int rows, row0;          // rows [row0, row0 + rows) of the batch
  int position0;           // of the first
  int length;              // context positions that the last sees
  int start;               // of the first tile that any sees
  size_t q_step, kv_step;  // elements from one row to the next
  size_t cache;            // first element of the head's keys and values
};
template <int kDim>
__device__ __forceinline__ PrefillTile prefill_tile(const PrefillProblem& p, int head) {
  const RowTile tile = p.batch.tiles[p.batch.long_first[blockIdx.y]];
  const SpanInfo span = p.batch.spans[tile.span];
  PrefillTile t;
  t.rows = min(kTileRows, span.count - tile.offset), t.row0 = span.row + tile.offset;
  t.position0 = p.batch.positions[t.row0], t.length = t.position0 + t.rows;
  t.start = max(0, t.position0 - p.window + 1) / kPrefillContext * kPrefillContext;
  t.q_step = static_cast<size_t>(p.query_heads) * kDim;
  t.kv_step = static_cast<size_t>(p.kv_heads) * kDim;
  const int kv_head = head / (p.query_heads / p.kv_heads);
  t.cache = (span.slot * p.max_length * p.kv_heads + kv_head) * kDim;
  return t;
}

/// Heads of 64, 128, 256, 512 (attention_flash.cu).
bool attention_flash_takes(int64_t dim);
void attention_flash(const PrefillProblem& problem, int64_t dim, cudaStream_t stream);

}  // namespace cbench::cuda
