// Matrix products of the CPU backend: BF16 or fp32 weights times fp32 rows.
//
// Few rows: an own GEMV that reads the stored weights once. Many rows: panels of weight rows are
// widened to fp32 in workspace and multiplied by oneDNN's sgemm. A plugin's matrix is multiplied by
// the plugin, or its panels are dequantized first.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/cpu/kernels.h"
#include "runtime/ops.h"

namespace cbench::cpu {

/// Row counts up to this use the GEMV.
inline constexpr int64_t kGemvTokens = 16;

/// Workspace of the products below; all of it transient.
struct LinearScratch {
  float* panel = nullptr;        ///< [panel_floats] widened weight rows
  uint16_t* bf16 = nullptr;      ///< [panel_floats] dequantized weight rows
  int64_t panel_floats = 0;      ///< at least one row of every matrix
  float* transformed = nullptr;  ///< [tokens, widest cols] a plugin's transformed input
  float* factor = nullptr;       ///< [tokens, widest rank] between two low-rank factors
  float* product = nullptr;      ///< [product_floats] plugin results still to be added
  int64_t product_floats = 0;    ///< at least one row of every result
  void* plugin = nullptr;        ///< the plugin's own, as planned
};

/// Plans and allocates the scratch for `tokens` rows, these matrices and these experts.
LinearScratch make_linear_scratch(Arena& arena, int64_t tokens,
                                  std::span<const Linear* const> matrices,
                                  std::span<const ExpertsSpec> experts = {});

/// y[t * y_stride + r] (+)= W[row0 + r] . x[t], r < rows, t < tokens; x [tokens, cols] dense.
void multiply_rows(const LinearScratch& scratch, const Linear& w, int64_t row0, int64_t rows,
                   const float* x, int64_t tokens, float* y, int64_t y_stride, bool add);

/// The whole matrix.
void multiply(const LinearScratch& scratch, const Linear& w, const float* x, int64_t tokens,
              float* y, int64_t y_stride, bool add);

/// Rows [row0, row0 + rows) of the parts of `w` laid end to end.
void multiply_range(const LinearScratch& scratch, const Projection& w, int64_t row0, int64_t rows,
                    const float* x, int64_t tokens, float* y, int64_t y_stride);

/// y [tokens, rows] = W[expert] x[t] by dequantized panels and the GEMV; x [tokens, cols] dense.
void multiply_expert(const LinearScratch& scratch, const PluginMatrix& matrix, int64_t expert,
                     const float* x, int64_t tokens, float* y);

/// y[i] = W[expert[i]] x[row[i]] for i < n by the plugin; false when it does not serve that.
bool plugin_experts(const LinearScratch& scratch, const PluginMatrix& matrix, const float* x,
                    const int32_t* expert, const int32_t* row, int64_t n, float* y);

/// y [n, cols] = rows ids[i] of the table.
void embed_rows(const LinearScratch& scratch, const Linear& table, std::span<const int32_t> ids,
                float* y);

/// The kernel y[i] = act(gate[i]) * up[i] of a gated activation.
inline auto gated(Activation activation) {
  return activation == Activation::kGeluTanh ? kernels().gelu_mul : kernels().silu_mul;
}

/// c [m, n] (+)= a [m, k] b^T, b [n, k]; single-precision GEMM of the library, all threads.
void sgemm_nt(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
              float* c, int64_t ldc, bool add);

}  // namespace cbench::cpu
