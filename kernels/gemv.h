// Matrix times one vector, at the speed of memory: the step's form of project, project_add, gate_up
// and lm_head (CPU: runtime/cpu).
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace cbench::cuda {

enum class GemvOutput {
  kStore,     ///< y [rows] BF16 = W x
  kAdd,       ///< y [rows] BF16 += W x
  kSiluPair,  ///< y [rows] BF16 = silu(W x) * (W2 x)
  kGeluPair,  ///< y [rows] BF16 = gelu(W x) * (W2 x), the tanh form
  kRelu2,     ///< y [rows] BF16 = max(0, W x)^2
  kLogits,    ///< y [rows] fp32 = W x, softly capped if asked
};

struct GemvArguments {
  const void* w = nullptr;   ///< [rows, cols] BF16
  const void* w2 = nullptr;  ///< [rows, cols] BF16 for the pairs
  const void* x = nullptr;   ///< [cols] BF16
  /// When given, x is normalized first: x * rsqrt(mean(x^2) + eps) * norm.
  const float* norm = nullptr;  ///< [cols] fp32
  float eps = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  float softcap = 0;  ///< > 0: logits become softcap * tanh(logits / softcap)
  void* y = nullptr;
};
void gemv(GemvOutput output, const GemvArguments& arguments, cudaStream_t stream);

}  // namespace cbench::cuda
