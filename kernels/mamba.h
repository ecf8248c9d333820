// Mamba 2: chunked prefill, single steps, a plain form for any shape, and the gated norm behind all
// of them. Together with conv.h they equal the CPU's Ops::mamba2.
#pragma once

#include <cuda_runtime_api.h>

#include "batch.h"

namespace cbench::cuda {

struct MambaCall {
  const Mamba2Spec* spec = nullptr;
  Mamba2State state;
  DeviceBatch batch;
  const void* in = nullptr;  ///< [T, z | xBC | dt] BF16
  void* y = nullptr;         ///< [T, inner] BF16
  cudaStream_t stream = nullptr;

  int64_t width() const { return spec->inner() + spec->conv_rows() + spec->heads; }
};

/// Scratch, carved from one block of mamba_scratch_bytes().
struct MambaScratch {
  void* conv;     ///< [T, conv_rows] BF16: x|B|C after the convolution
  void* readout;  ///< [T, inner]: h C + D x before the gate; fp32, or BF16 from mamba_chunks
};
size_t mamba_scratch_bytes(const Mamba2Spec& spec, int64_t tokens);
MambaScratch mamba_scratch(const Mamba2Spec& spec, int64_t tokens, void* base);

/// scratch.conv = SiLU of the convolution of x|B|C.
void mamba_conv(const MambaCall& call, const MambaScratch& scratch);
/// The convolution state after the batch; after mamba_conv, which reads the old one.
void mamba_conv_state(const MambaCall& call);

/// Heads of 64, 128 states: tiles of 64 rows on tensor cores, after mamba_conv.
bool mamba_chunks_take(const Mamba2Spec& spec);
void mamba_chunks(const MambaCall& call, const MambaScratch& scratch);
/// Any shape: row by row, after mamba_conv.
void mamba_rows(const MambaCall& call, const MambaScratch& scratch);

/// Heads of 64, 128 states, convolution width 4, one row per span: everything but the norm in one
/// kernel. It leaves the convolution state to mamba_norm.
bool mamba_step_takes(const Mamba2Spec& spec);
void mamba_step(const MambaCall& call, const MambaScratch& scratch);

/// y = norm(readout * silu(z)) per group. After mamba_step it also advances the convolution state.
enum class MambaReadout { kFloat, kBf16, kStep };
void mamba_norm(const MambaCall& call, const MambaScratch& scratch, MambaReadout readout);

}  // namespace cbench::cuda
