// Serial vector kernels of the CPU backend, compiled once per instruction set and picked at run
// time. Plain pointers in, plain pointers out; threads and batches are the callers' business.
#pragma once

#include <cstdint>
#include <span>

namespace cbench::cpu {

struct Kernels {
  const char* name;  ///< "avx512", "avx2", "generic"

  /// out[i] = fp32 of BF16 in[i].
  void (*widen)(const uint16_t* in, int64_t n, float* out);
  /// y[t * y_stride + r] (+)= sum_k w[r * w_stride + k] x[t * x_stride + k]; r < rows, t < tokens.
  /// For few tokens: each weight is read once per four tokens.
  void (*gemv_bf16)(const uint16_t* w, int64_t rows, int64_t cols, int64_t w_stride, const float* x,
                    int64_t tokens, int64_t x_stride, float* y, int64_t y_stride, bool add);
  void (*gemv_f32)(const float* w, int64_t rows, int64_t cols, int64_t w_stride, const float* x,
                   int64_t tokens, int64_t x_stride, float* y, int64_t y_stride, bool add);
  /// c[i, j] (+)= sum_k a[i * a_row + k * a_col] b[k * ldb + j], i < m, j < n; n a multiple of 16.
  void (*matmul)(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_col,
                 const float* b, int64_t ldb, float* c, int64_t ldc, bool add);
  /// y = x * rsqrt(mean(x^2) + eps) * weight over one row; a null weight counts as ones.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t width, float* y);
  /// y = rms_norm(x) * silu(z).
  void (*gated_norm)(const float* x, const float* weight, float eps, const float* z, int64_t width,
                     float* y);
  /// y = x * scale / sqrt(sum x^2 + 1e-6), in place.
  void (*l2_norm)(float* x, int64_t width, float scale);
  /// y = (y + rms_norm(x)) * scale over one row.
  void (*add_rms_norm)(const float* x, const float* weight, float eps, float scale, int64_t width,
                       float* y);
  /// y[i] = silu(gate[i]) * up[i], and the same with the tanh approximation of GELU.
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* y);
  void (*gelu_mul)(const float* gate, const float* up, int64_t n, float* y);
  /// x[i] = max(0, x[i])^2.
  void (*relu2)(float* x, int64_t n);
  /// x[i] = cap * tanh(x[i] / cap).
  void (*softcap)(float* x, int64_t n, float cap);
  /// y[i] *= sigmoid(gate[i]).
  void (*sigmoid_mul)(const float* gate, int64_t n, float* y);
  /// out[c] = silu(sum_j weight[c * taps + j] rows[j][c] + bias[c]) for c < n: one token of the
  /// convolution. The bias may be null.
  void (*conv_silu)(const float* const* rows, const float* weight, const float* bias, int64_t taps,
                    int64_t n, float* out);
  /// Rotates the first 2 * half values of x by the angles of cos/sin [half].
  void (*rotate)(float* x, const float* cos, const float* sin, int64_t half);
  /// One row of streaming softmax: s[0, valid) becomes exp(s * scale - max), s[valid, n) zero;
  /// running max and sum move on, and o [width] is rescaled to them.
  void (*softmax_row)(float* s, int64_t valid, int64_t n, float scale, float* max, float* sum,
                      float* o, int64_t width);
  /// o[i] = sum_j p[j] v[j * stride + i], i < width, j < n.
  void (*weighted_sum)(const float* p, const float* v, int64_t n, int64_t stride, int64_t width,
                       float* o);
  /// One token of the gated delta rule on state [key_dim, value_dim]:
  /// S *= decay; d = beta (v - S^T k); S += k d^T; o = S^T q. `d` is scratch [value_dim].
  void (*delta_step)(float* state, int64_t key_dim, int64_t value_dim, float decay, float beta,
                     const float* q, const float* k, const float* v, float* d, float* o);
  /// Row i of a chunk's masked products: with decay = exp(gamma[i] - gamma[j]),
  /// a[j] = -beta decay kk[j] for j < i and p[j] = decay qk[j] for j <= i; zero up to n.
  void (*delta_masks)(const float* gamma, int64_t i, int64_t n, float beta, const float* kk,
                      const float* qk, float* a, float* p);
  /// One token of the state space recurrence on state [width, n]:
  /// S = decay S + x b^T; y = S c.
  void (*ssm_step)(float* state, int64_t width, int64_t n, float decay, const float* x,
                   const float* b, const float* c, float* y);
  /// y[i] = a * x[i] and y[i] += a * x[i].
  void (*scale)(float a, const float* x, int64_t n, float* y);
  void (*axpy)(float a, const float* x, int64_t n, float* y);
  /// sum_i x[i], as fast as memory gives them: the bench's read ceiling.
  float (*sum)(const float* x, int64_t n);
  /// out[i] = exp(in[i]).
  void (*exp)(const float* in, int64_t n, float* out);
};

/// The best set for this machine.
const Kernels& kernels();
/// Every set that this machine can run, best first: tests hold all of them to the same references.
std::span<const Kernels* const> runnable_kernels();

}  // namespace cbench::cpu
