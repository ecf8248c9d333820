// Attention over the cache, all of it or a sliding window: prepare (q/k/v norm, rotary, append),
// prefill, decode.
// Together they equal the CPU's Ops::attention.
#pragma once

#include <cuda_runtime_api.h>

#include "batch.h"

namespace cbench::cuda {

struct AttentionCall {
  const AttentionSpec* spec = nullptr;
  KvCache cache;
  DeviceBatch batch;
  const void* qkv = nullptr;  ///< [T, q | k | v] BF16
  void* q = nullptr;          ///< scratch [T, query_heads, head_dim] BF16
  void* y = nullptr;          ///< [T, query_heads * head_dim] BF16
  bool step = false;          ///< every span has one row
  cudaStream_t stream = nullptr;

  int64_t q_width() const { return spec->query_heads * spec->head_dim * (spec->gated ? 2 : 1); }
  int64_t width() const {
    return q_width() + (spec->k_is_v ? 1 : 2) * spec->kv_heads * spec->head_dim;
  }
};

/// q = rope(norm(q)) to scratch; k likewise and v to the cache at the row's position.
void attention_prepare(const AttentionCall& call);

/// Whether the tensor core kernel serves this head width.
bool attention_prefill_takes(const AttentionSpec& spec);
/// Many rows per sequence: y = gate * softmax(q k^T) v.
void attention_prefill(const AttentionCall& call);

/// Context per block of the decode kernel. Fixed, so that a row's result depends on nothing else.
constexpr int kDecodeSplit = 64;
constexpr int64_t kDecodeMaxHead = 512;
/// Scratch bytes of attention_decode for `rows` rows at once.
size_t attention_decode_scratch(const AttentionSpec& spec, int64_t max_length, int64_t rows);
/// One row at a time against its context, any head width up to 256, multiples of
/// 16 up to 512: rows [first, first + rows). In
/// a step it appends k and v to the cache itself; otherwise attention_prepare has done so.
void attention_decode(const AttentionCall& call, int64_t first, int64_t rows, void* scratch);

}  // namespace cbench::cuda
