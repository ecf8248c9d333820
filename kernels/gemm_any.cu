// Plain matrix product for shapes that tensor cores do not take: test models with odd sizes. One
// thread per output, 16 x 16 outputs per block, columns in ascending order.
#include "device.cuh"
#include "gemm.h"

namespace cbench::cuda {
namespace {

constexpr int kTile = 16;

struct Problem {
  const bf16* x;
  const bf16* w;
  void* y;
  int rows, n, k;
  int64_t y_stride;
  bool fp32, accumulate;
};

__global__ void gemm_any_kernel(const __grid_constant__ Problem p) {
  __shared__ float xs[kTile][kTile + 1], ws[kTile][kTile + 1];
  pdl_begin();
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int n0 = blockIdx.x * kTile, row0 = blockIdx.y * kTile;
  float sum = 0;
  for (int k0 = 0; k0 < p.k; k0 += kTile) {
    const int k = k0 + tx;
    const bool x_inside = row0 + ty < p.rows && k < p.k, w_inside = n0 + ty < p.n && k < p.k;
    xs[ty][tx] = x_inside ? to_float(p.x[static_cast<size_t>(row0 + ty) * p.k + k]) : 0.f;
    ws[ty][tx] = w_inside ? to_float(p.w[static_cast<size_t>(n0 + ty) * p.k + k]) : 0.f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile; i++) sum = fmaf(xs[ty][i], ws[tx][i], sum);
    __syncthreads();
  }
  if (row0 + ty >= p.rows || n0 + tx >= p.n) return;
  const size_t at = static_cast<size_t>(row0 + ty) * p.y_stride + n0 + tx;
  if (p.fp32) {
    auto* y = static_cast<float*>(p.y) + at;
    *y = p.accumulate ? *y + sum : sum;
  } else {
    auto* y = static_cast<bf16*>(p.y) + at;
    *y = to_bf16(p.accumulate ? to_float(*y) + sum : sum);
  }
}

}  // namespace

void gemm_any(const GemmArguments& a, cudaStream_t stream) {
  const Problem p{static_cast<const bf16*>(a.x),
                  static_cast<const bf16*>(a.w),
                  a.y,
                  static_cast<int>(a.rows),
                  static_cast<int>(a.n),
                  static_cast<int>(a.k),
                  a.y_stride,
                  a.fp32,
                  a.accumulate};
  const dim3 grid(static_cast<unsigned>(ceil_div(a.n, kTile)),
                  static_cast<unsigned>(ceil_div(a.rows, kTile)));
  launch(gemm_any_kernel, grid, dim3(kTile, kTile), 0, stream, p);
}

}  // namespace cbench::cuda
