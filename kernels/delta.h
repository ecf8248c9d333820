// Gated delta net: convolution, chunked prefill, single steps, and a plain form for any shape.
// Together they equal the CPU's Ops::delta_net (formulas in docs/architecture.md).
#pragma once

#include <cuda_runtime_api.h>

#include "batch.h"

namespace cbench::cuda {

struct DeltaCall {
  const DeltaNetSpec* spec = nullptr;
  DeltaNetState state;
  DeviceBatch batch;
  const void* in = nullptr;  ///< [T, qkv | z | b | a] BF16
  void* y = nullptr;         ///< [T, value_heads * value_dim] BF16
  cudaStream_t stream = nullptr;

  int64_t width() const {
    return spec->conv_rows() + spec->value_heads * spec->value_dim + 2 * spec->value_heads;
  }
};

/// Scratch of a prefill, carved from one block of delta_scratch() bytes.
struct DeltaScratch {
  void* conv;     ///< [T, conv_rows] BF16: q, k normalized, v
  void* minus_w;  ///< [T, value_heads, 128] BF16: -T (beta e^gamma k)
  void* u;        ///< [T, value_heads, 128] BF16: T (beta v)
  void* scores;   ///< [tiles, value_heads, 64, 64] BF16: lower(q k^T e^(gamma_i - gamma_j))
  float* gamma;   ///< [T, value_heads]: cumulative gate within the tile
};
size_t delta_scratch_bytes(const DeltaNetSpec& spec, int64_t tokens, int64_t sequences);
DeltaScratch delta_scratch(const DeltaNetSpec& spec, int64_t tokens, int64_t tiles, void* base);

/// scratch.conv = SiLU of the convolution, q and k L2-normalized, q times key_dim^-0.5.
void delta_conv(const DeltaCall& call, const DeltaScratch& scratch);
/// The convolution state after the batch; after delta_conv, which reads the old one.
void delta_conv_state(const DeltaCall& call);

/// Heads of 128 x 128: tiles of 64 rows on tensor cores.
bool delta_chunks_take(const DeltaNetSpec& spec);
void delta_chunk_prepare(const DeltaCall& call, const DeltaScratch& scratch);
void delta_chunk_state(const DeltaCall& call, const DeltaScratch& scratch);

/// Heads of 128 x 128, convolution width 4, one row per span: everything in one kernel.
bool delta_step_takes(const DeltaNetSpec& spec);
void delta_step(const DeltaCall& call);

/// Any shape: row by row, after delta_conv.
void delta_rows(const DeltaCall& call, const DeltaScratch& scratch);

}  // namespace cbench::cuda
