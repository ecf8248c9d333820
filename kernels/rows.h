// Row-wise ops of a batch: embedding, norm, gather, bias, activation, residuals, greedy choice.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "runtime/ops.h"

namespace cbench::cuda {

/// y [n, width] BF16 = scale * table rows index[i]; rows outside [first, first + count) are left
/// alone. The table starts at row `first`.
void gather_rows(const void* table, const int32_t* index, int64_t n, int64_t width, int64_t first,
                 int64_t count, float scale, void* y, cudaStream_t stream);
/// x [n] BF16 *= scale.
void scale_rows(void* x, int64_t n, float scale, cudaStream_t stream);
/// y [rows, width] BF16 = x * rsqrt(mean(x^2) + eps) * weight.
void rms_norm(const void* x, const float* weight, float eps, int64_t rows, int64_t width, void* y,
              cudaStream_t stream);
/// y [rows, width] BF16 = act(halves[:, :width]) * halves[:, width:], or act(halves [rows, width])
/// if the activation is not gated; y may be `halves` then.
void activate_rows(Activation activation, const void* halves, int64_t rows, int64_t width, void* y,
                   cudaStream_t stream);
/// residual [rows, width] BF16 = (residual + norm(y)) * scale; no norm if norm.weight is null.
void add_normed_rows(const void* y, const Norm& norm, int64_t rows, int64_t width, float scale,
                     void* residual, cudaStream_t stream);
/// residual [rows, width] BF16 += sigmoid(gate [width] . x[t]) * y[t].
void add_gated_rows(const void* y, const void* x, const float* gate, int64_t rows, int64_t width,
                    void* residual, cudaStream_t stream);
/// logits [n] fp32 = softcap * tanh(logits / softcap).
void cap_logits(float* logits, int64_t n, float softcap, cudaStream_t stream);
/// y [rows, width] BF16 += x.
void add_rows(const void* x, int64_t rows, int64_t width, void* y, cudaStream_t stream);
/// y [rows, width] BF16 += bias [width] fp32.
void add_bias(const float* bias, int64_t rows, int64_t width, void* y, cudaStream_t stream);
/// y [n] fp32 = x [n] BF16.
void widen(const void* x, int64_t n, float* y, cudaStream_t stream);

/// ids[i] = lowest index of the largest of logits [rows, vocab]; positions[i] += 1 and, for each
/// span's `start`, += 1. `scratch` holds argmax_scratch(rows) bytes. A row of NaNs gives id 0.
void advance_greedy(const float* logits, int64_t rows, int64_t vocab, int32_t* ids,
                    int32_t* positions, void* scratch, cudaStream_t stream);
size_t argmax_scratch(int64_t rows);

}  // namespace cbench::cuda
