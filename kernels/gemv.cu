// BF16 GEMV. A block owns 8 rows (4 gate and 4 up rows for a pair); its 8 warps split the
// columns, each lane requests 16 bytes of every row before it multiplies any, and the first request
// goes out before the previous kernel has finished. The RMS norm needs no pass of its own: a block
// reads all of x anyway, so it sums the squares on the way and scales the finished dot products.
//
// Assumes cols % 8 == 0 and 16-byte aligned rows; other shapes take gemv_any. Sums have a fixed
// order: columns within a lane, lanes by shuffles, warps by index.
#include "activation.cuh"
#include "gemv.h"

namespace cbench::cuda {
namespace {

constexpr int kRows = 8, kWarps = 8, kUnit = 256;  // kUnit: columns that a warp takes at a time

struct Problem {
  const bf16* w;
  const bf16* w2;
  const bf16* x;
  const float* norm;
  float eps, softcap;
  int rows, cols;
  void* y;
};

template <GemvOutput kOutput>
constexpr bool kIsPair = kOutput == GemvOutput::kSiluPair || kOutput == GemvOutput::kGeluPair;

template <GemvOutput kOutput>
__device__ __forceinline__ void store(const Problem& p, int row, float dot, float dot2) {
  auto* y = static_cast<bf16*>(p.y) + row;
  if constexpr (kOutput == GemvOutput::kStore) *y = to_bf16(dot);
  if constexpr (kOutput == GemvOutput::kAdd) *y = to_bf16(to_float(*y) + dot);
  if constexpr (kOutput == GemvOutput::kSiluPair)
    *y = to_bf16(activate<Activation::kSilu>(dot, dot2));
  if constexpr (kOutput == GemvOutput::kGeluPair)
    *y = to_bf16(activate<Activation::kGeluTanh>(dot, dot2));
  if constexpr (kOutput == GemvOutput::kRelu2) *y = to_bf16(activate<Activation::kRelu2>(0, dot));
  if constexpr (kOutput == GemvOutput::kLogits)
    static_cast<float*>(p.y)[row] = p.softcap > 0 ? p.softcap * tanhf(dot / p.softcap) : dot;
}

template <GemvOutput kOutput, bool kNorm>
__global__ void __launch_bounds__(kWarps * 32, 3) gemv_kernel(const __grid_constant__ Problem p) {
  constexpr bool kPair = kIsPair<kOutput>;
  constexpr int kOwn = kPair ? kRows / 2 : kRows;  // output rows of a block
  __shared__ float part[kWarps][kRows], squares[kWarps];
  pdl_trigger();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * kOwn;
  const bf16* row[kRows];
#pragma unroll
  for (int r = 0; r < kRows; r++) {
    const int index = min(first + r % kOwn, p.rows - 1);
    row[r] = (r < kOwn ? p.w : p.w2) + static_cast<size_t>(index) * p.cols;
  }
  uint4 w[kRows];
  int col = warp * kUnit + lane * 8;
  auto request = [&] {
#pragma unroll
    for (int r = 0; r < kRows; r++) w[r] = stream_load(row[r] + col);
  };
  if (col < p.cols) request();
  pdl_wait();

  float sum[kRows] = {}, square = 0;
  while (col < p.cols) {
    float x[8];
    unpack(__ldcg(reinterpret_cast<const uint4*>(p.x + col)), x);
    if constexpr (kNorm) {
      const float4 n0 = __ldg(reinterpret_cast<const float4*>(p.norm + col));
      const float4 n1 = __ldg(reinterpret_cast<const float4*>(p.norm + col) + 1);
#pragma unroll
      for (int i = 0; i < 8; i++) square = fmaf(x[i], x[i], square);
      x[0] *= n0.x, x[1] *= n0.y, x[2] *= n0.z, x[3] *= n0.w;
      x[4] *= n1.x, x[5] *= n1.y, x[6] *= n1.z, x[7] *= n1.w;
    }
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      float v[8];
      unpack(w[r], v);
#pragma unroll
      for (int i = 0; i < 8; i++) sum[r] = fmaf(v[i], x[i], sum[r]);
    }
    col += kWarps * kUnit;
    if (col < p.cols) request();
  }

#pragma unroll
  for (int r = 0; r < kRows; r++) {
    sum[r] = warp_sum(sum[r]);
    if (lane == 0) part[warp][r] = sum[r];
  }
  if constexpr (kNorm) {
    square = warp_sum(square);
    if (lane == 0) squares[warp] = square;
  }
  __syncthreads();
  const int mine = threadIdx.x;
  if (mine >= kOwn || first + mine >= p.rows) return;
  float dot = 0, dot2 = 0, total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; i++) {
    dot += part[i][mine];
    if constexpr (kPair) dot2 += part[i][mine + kOwn];
    if constexpr (kNorm) total += squares[i];
  }
  if constexpr (kNorm) {
    const float scale = rsqrtf(total / static_cast<float>(p.cols) + p.eps);
    dot *= scale, dot2 *= scale;
  }
  store<kOutput>(p, first + mine, dot, dot2);
}

/// Any shape: one warp per row, one element at a time.
template <GemvOutput kOutput, bool kNorm>
__global__ void gemv_any(const __grid_constant__ Problem p) {
  pdl_begin();
  const int row = blockIdx.x, lane = threadIdx.x;
  const size_t offset = static_cast<size_t>(row) * p.cols;
  float dot = 0, dot2 = 0, square = 0;
  for (int c = lane; c < p.cols; c += 32) {
    float x = to_float(p.x[c]);
    if constexpr (kNorm) square = fmaf(x, x, square), x *= p.norm[c];
    dot = fmaf(to_float(p.w[offset + c]), x, dot);
    if constexpr (kIsPair<kOutput>) dot2 = fmaf(to_float(p.w2[offset + c]), x, dot2);
  }
  dot = warp_sum(dot), dot2 = warp_sum(dot2);
  if constexpr (kNorm) {
    const float scale = rsqrtf(warp_sum(square) / static_cast<float>(p.cols) + p.eps);
    dot *= scale, dot2 *= scale;
  }
  if (lane == 0) store<kOutput>(p, row, dot, dot2);
}

template <GemvOutput kOutput, bool kNorm>
void run(const Problem& p, cudaStream_t stream) {
  const auto misaligned = [](const void* q) { return reinterpret_cast<uintptr_t>(q) % 16 != 0; };
  if (p.cols % 8 || misaligned(p.w) || misaligned(p.w2) || misaligned(p.x)) {
    launch(gemv_any<kOutput, kNorm>, p.rows, 32, 0, stream, p);
    return;
  }
  const int own = kIsPair<kOutput> ? kRows / 2 : kRows;
  launch(gemv_kernel<kOutput, kNorm>, static_cast<unsigned>(ceil_div(p.rows, own)), kWarps * 32, 0,
         stream, p);
}

template <GemvOutput kOutput>
void run(const Problem& p, cudaStream_t stream) {
  p.norm ? run<kOutput, true>(p, stream) : run<kOutput, false>(p, stream);
}

}  // namespace

void gemv(GemvOutput output, const GemvArguments& a, cudaStream_t stream) {
  const Problem p{static_cast<const bf16*>(a.w),
                  static_cast<const bf16*>(a.w2),
                  static_cast<const bf16*>(a.x),
                  a.norm,
                  a.eps,
                  a.softcap,
                  static_cast<int>(a.rows),
                  static_cast<int>(a.cols),
                  a.y};
  switch (output) {
    case GemvOutput::kStore:
      return run<GemvOutput::kStore>(p, stream);
    case GemvOutput::kAdd:
      return run<GemvOutput::kAdd>(p, stream);
    case GemvOutput::kSiluPair:
      return run<GemvOutput::kSiluPair>(p, stream);
    case GemvOutput::kGeluPair:
      return run<GemvOutput::kGeluPair>(p, stream);
    case GemvOutput::kRelu2:
      return run<GemvOutput::kRelu2>(p, stream);
    case GemvOutput::kLogits:
      return run<GemvOutput::kLogits>(p, stream);
  }
}

}  // namespace cbench::cuda
