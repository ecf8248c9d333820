// Rows that return to the residual stream: after a norm of their own, or behind a gate. One block
// per row; equals the CPU's add_normed and add_gated up to the rounding of BF16 outputs.
#include "device.cuh"
#include "rows.h"

namespace cbench::cuda {
namespace {

constexpr int kThreads = 256;

/// residual[c..] = f(residual[c..], y[c..], c) for 8 columns at a time, or one by one for odd
/// widths.
template <class F>
__device__ __forceinline__ void update_row(bf16* residual, const bf16* y, int width, F f) {
  if (width % 8 == 0) {
    for (int c = threadIdx.x * 8; c < width; c += kThreads * 8) {
      float r[8], v[8];
      unpack(*reinterpret_cast<const uint4*>(residual + c), r);
      unpack(*reinterpret_cast<const uint4*>(y + c), v);
#pragma unroll
      for (int j = 0; j < 8; j++) r[j] = f(r[j], v[j], c + j);
      *reinterpret_cast<uint4*>(residual + c) = pack8(r);
    }
  } else {
    for (int c = threadIdx.x; c < width; c += kThreads)
      residual[c] = to_bf16(f(to_float(residual[c]), to_float(y[c]), c));
  }
}

/// The columns of a thread, 8 side by side where the width allows it.
template <class F>
__device__ __forceinline__ void each_column(const bf16* x, int width, F f) {
  if (width % 8 == 0) {
    for (int c = threadIdx.x * 8; c < width; c += kThreads * 8) {
      float v[8];
      unpack(*reinterpret_cast<const uint4*>(x + c), v);
#pragma unroll
      for (int j = 0; j < 8; j++) f(v[j], c + j);
    }
  } else {
    for (int c = threadIdx.x; c < width; c += kThreads) f(to_float(x[c]), c);
  }
}

__global__ void __launch_bounds__(kThreads)
    add_normed_kernel(const bf16* y, const float* weight, float eps, int width, float scale,
                      bf16* residual) {
  __shared__ float shared[kThreads / 32];
  pdl_begin();
  y += static_cast<size_t>(blockIdx.x) * width;
  residual += static_cast<size_t>(blockIdx.x) * width;
  if (!weight) {
    update_row(residual, y, width, [&](float r, float v, int) { return (r + v) * scale; });
    return;
  }
  float square = 0;
  each_column(y, width, [&](float v, int) { square = fmaf(v, v, square); });
  const float norm = rsqrtf(block_sum<kThreads>(square, shared) / static_cast<float>(width) + eps);
  update_row(residual, y, width,
             [&](float r, float v, int c) { return (r + v * norm * __ldg(weight + c)) * scale; });
}

__global__ void __launch_bounds__(kThreads)
    add_gated_kernel(const bf16* y, const bf16* x, const float* gate, int width, bf16* residual) {
  __shared__ float shared[kThreads / 32];
  pdl_begin();
  const size_t at = static_cast<size_t>(blockIdx.x) * width;
  float dot = 0;
  each_column(x + at, width, [&](float v, int c) { dot = fmaf(v, __ldg(gate + c), dot); });
  const float open = sigmoid(block_sum<kThreads>(dot, shared));
  update_row(residual + at, y + at, width, [&](float r, float v, int) { return fmaf(open, v, r); });
}

}  // namespace

void add_normed_rows(const void* y, const Norm& norm, int64_t rows, int64_t width, float scale,
                     void* residual, cudaStream_t stream) {
  launch(add_normed_kernel, static_cast<unsigned>(rows), kThreads, 0, stream,
         static_cast<const bf16*>(y), norm.weight, norm.eps, static_cast<int>(width), scale,
         static_cast<bf16*>(residual));
}

void add_gated_rows(const void* y, const void* x, const float* gate, int64_t rows, int64_t width,
                    void* residual, cudaStream_t stream) {
  launch(add_gated_kernel, static_cast<unsigned>(rows), kThreads, 0, stream,
         static_cast<const bf16*>(y), static_cast<const bf16*>(x), gate, static_cast<int>(width),
         static_cast<bf16*>(residual));
}

}  // namespace cbench::cuda
