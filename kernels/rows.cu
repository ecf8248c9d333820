// Row-wise kernels. Each equals the CPU op of the same name up to the rounding of BF16 outputs.
#include "activation.cuh"
#include "rows.h"

namespace cbench::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void gather_kernel(const bf16* table, const int32_t* index, int64_t width, int64_t first,
                              int64_t count, float scale, bf16* y) {
  pdl_begin();
  const int64_t row = index[blockIdx.x] - first;
  if (row < 0 || row >= count) return;
  const bf16* from = table + row * width;
  bf16* to = y + blockIdx.x * width;
  if (scale != 1) {
    for (int64_t c = threadIdx.x; c < width; c += blockDim.x)
      to[c] = to_bf16(scale * to_float(from[c]));
  } else if (width % 8 == 0) {
    for (int64_t c = threadIdx.x * 8; c < width; c += blockDim.x * 8)
      *reinterpret_cast<uint4*>(to + c) = *reinterpret_cast<const uint4*>(from + c);
  } else {
    for (int64_t c = threadIdx.x; c < width; c += blockDim.x) to[c] = from[c];
  }
}

/// Rows of up to kThreads * 8 * kPieces columns stay in registers between the two passes.
constexpr int kPieces = 4;
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const bf16* x, const float* weight, float eps, int width, bf16* y) {
  __shared__ float shared[kThreads / 32];
  pdl_begin();
  x += static_cast<size_t>(blockIdx.x) * width;
  y += static_cast<size_t>(blockIdx.x) * width;
  uint4 v[kPieces];
  float square = 0, f[8];
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    const int col = (i * kThreads + threadIdx.x) * 8;
    if (col >= width) break;
    v[i] = *reinterpret_cast<const uint4*>(x + col);
    unpack(v[i], f);
#pragma unroll
    for (int j = 0; j < 8; j++) square = fmaf(f[j], f[j], square);
  }
  const float scale = rsqrtf(block_sum<kThreads>(square, shared) / static_cast<float>(width) + eps);
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    const int col = (i * kThreads + threadIdx.x) * 8;
    if (col >= width) break;
    unpack(v[i], f);
#pragma unroll
    for (int j = 0; j < 8; j++) f[j] *= scale * __ldg(weight + col + j);
    *reinterpret_cast<uint4*>(y + col) = pack8(f);
  }
}
__global__ void __launch_bounds__(kThreads)
    rms_norm_any(const bf16* x, const float* weight, float eps, int width, bf16* y) {
  __shared__ float shared[kThreads / 32];
  pdl_begin();
  x += static_cast<size_t>(blockIdx.x) * width;
  y += static_cast<size_t>(blockIdx.x) * width;
  float square = 0;
  for (int c = threadIdx.x; c < width; c += kThreads) square += to_float(x[c]) * to_float(x[c]);
  const float scale = rsqrtf(block_sum<kThreads>(square, shared) / static_cast<float>(width) + eps);
  for (int c = threadIdx.x; c < width; c += kThreads)
    y[c] = to_bf16(to_float(x[c]) * scale * weight[c]);
}

template <Activation kActivation>
__global__ void activate_kernel(const bf16* halves, int64_t width, bf16* y) {
  constexpr bool kGated = kGatedActivation<kActivation>;
  pdl_begin();
  const int64_t row = blockIdx.y,
                col = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
  if (col >= width) return;
  const bf16* gate = halves + row * (kGated ? 2 : 1) * width + col;
  const bf16* up = kGated ? gate + width : gate;
  float g[8], u[8];
  if (width % 8 == 0) {
    if constexpr (kGated) unpack(__ldcs(reinterpret_cast<const uint4*>(gate)), g);
    unpack(__ldcs(reinterpret_cast<const uint4*>(up)), u);
#pragma unroll
    for (int j = 0; j < 8; j++) g[j] = activate<kActivation>(kGated ? g[j] : 0.f, u[j]);
    *reinterpret_cast<uint4*>(y + row * width + col) = pack8(g);
  } else {
    for (int j = 0; j < 8 && col + j < width; j++)
      y[row * width + col + j] = to_bf16(activate<kActivation>(to_float(gate[j]), to_float(up[j])));
  }
}

__global__ void add_rows_kernel(const bf16* x, int64_t n, bf16* y) {
  pdl_begin();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) y[i] = to_bf16(to_float(y[i]) + to_float(x[i]));
}
__global__ void add_bias_kernel(const float* bias, int64_t n, int64_t width, bf16* y) {
  pdl_begin();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) y[i] = to_bf16(to_float(y[i]) + bias[i % width]);
}
__global__ void widen_kernel(const bf16* x, int64_t n, float* y) {
  pdl_begin();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) y[i] = to_float(x[i]);
}
__global__ void scale_kernel(bf16* x, int64_t n, float scale) {
  pdl_begin();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) x[i] = to_bf16(to_float(x[i]) * scale);
}
__global__ void cap_kernel(float* logits, int64_t n, float softcap) {
  pdl_begin();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) logits[i] = softcap * tanhf(logits[i] / softcap);
}
unsigned blocks(int64_t n) { return static_cast<unsigned>(ceil_div(n, kThreads)); }

// --- greedy choice
// --------------------------------------------------------------------------------
struct Best {
  float value;
  int32_t index;
};
constexpr int kPartials = 64;

__device__ __forceinline__ Best better(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}
__device__ Best block_best(Best best) {
  __shared__ Best shared[kThreads / 32];
#pragma unroll
  for (int o = 16; o; o >>= 1)
    best = better(best, {__shfl_xor_sync(~0u, best.value, o), __shfl_xor_sync(~0u, best.index, o)});
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = best;
  __syncthreads();
  best = shared[0];
  for (int i = 1; i < kThreads / 32; i++) best = better(best, shared[i]);
  return best;
}
__global__ void __launch_bounds__(kThreads)
    argmax_kernel(const float* logits, int vocab, Best* partial) {
  pdl_begin();
  const float* row = logits + static_cast<size_t>(blockIdx.y) * vocab;
  Best best{-INFINITY, INT32_MAX};
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < vocab; i += kPartials * kThreads)
    best = better(best, {row[i], i});
  best = block_best(best);
  if (threadIdx.x == 0) partial[blockIdx.y * kPartials + blockIdx.x] = best;
}
__global__ void __launch_bounds__(kThreads)
    advance_kernel(const Best* partial, int32_t* ids, int32_t* positions) {
  pdl_begin();
  const Best* mine = partial + blockIdx.x * kPartials;
  Best best = threadIdx.x < kPartials ? mine[threadIdx.x] : Best{-INFINITY, INT32_MAX};
  best = block_best(best);
  if (threadIdx.x != 0) return;
  ids[blockIdx.x] = best.index == INT32_MAX ? 0 : best.index;
  positions[blockIdx.x] += 1;
}

}  // namespace

void gather_rows(const void* table, const int32_t* index, int64_t n, int64_t width, int64_t first,
                 int64_t count, float scale, void* y, cudaStream_t stream) {
  launch(gather_kernel, static_cast<unsigned>(n), 128, 0, stream, static_cast<const bf16*>(table),
         index, width, first, count, scale, static_cast<bf16*>(y));
}

void scale_rows(void* x, int64_t n, float scale, cudaStream_t stream) {
  launch(scale_kernel, blocks(n), kThreads, 0, stream, static_cast<bf16*>(x), n, scale);
}

void cap_logits(float* logits, int64_t n, float softcap, cudaStream_t stream) {
  launch(cap_kernel, blocks(n), kThreads, 0, stream, logits, n, softcap);
}

void rms_norm(const void* x, const float* weight, float eps, int64_t rows, int64_t width, void* y,
              cudaStream_t stream) {
  const bool fits = width % 8 == 0 && width <= kThreads * 8 * kPieces;
  launch(fits ? rms_norm_kernel : rms_norm_any, static_cast<unsigned>(rows), kThreads, 0, stream,
         static_cast<const bf16*>(x), weight, eps, static_cast<int>(width), static_cast<bf16*>(y));
}

void activate_rows(Activation activation, const void* halves, int64_t rows, int64_t width, void* y,
                   cudaStream_t stream) {
  constexpr int64_t kMost = 32768;  // rows per launch: grid.y is limited to 65535
  const auto kernel = activation == Activation::kSilu       ? activate_kernel<Activation::kSilu>
                      : activation == Activation::kGeluTanh ? activate_kernel<Activation::kGeluTanh>
                                                            : activate_kernel<Activation::kRelu2>;
  const int64_t step = is_gated(activation) ? 2 * width : width;
  for (int64_t row = 0; row < rows; row += kMost) {
    const dim3 grid(blocks(ceil_div(width, 8)), static_cast<unsigned>(std::min(kMost, rows - row)));
    launch(kernel, grid, kThreads, 0, stream, static_cast<const bf16*>(halves) + row * step, width,
           static_cast<bf16*>(y) + row * width);
  }
}

void add_rows(const void* x, int64_t rows, int64_t width, void* y, cudaStream_t stream) {
  launch(add_rows_kernel, blocks(rows * width), kThreads, 0, stream, static_cast<const bf16*>(x),
         rows * width, static_cast<bf16*>(y));
}

void add_bias(const float* bias, int64_t rows, int64_t width, void* y, cudaStream_t stream) {
  launch(add_bias_kernel, blocks(rows * width), kThreads, 0, stream, bias, rows * width, width,
         static_cast<bf16*>(y));
}

void widen(const void* x, int64_t n, float* y, cudaStream_t stream) {
  launch(widen_kernel, blocks(n), kThreads, 0, stream, static_cast<const bf16*>(x), n, y);
}

size_t argmax_scratch(int64_t rows) { return static_cast<size_t>(rows) * kPartials * sizeof(Best); }

void advance_greedy(const float* logits, int64_t rows, int64_t vocab, int32_t* ids,
                    int32_t* positions, void* scratch, cudaStream_t stream) {
  auto* partial = static_cast<Best*>(scratch);
  launch(argmax_kernel, dim3(kPartials, static_cast<unsigned>(rows)), kThreads, 0, stream, logits,
         static_cast<int>(vocab), partial);
  launch(advance_kernel, static_cast<unsigned>(rows), kThreads, 0, stream, partial, ids, positions);
}

}  // namespace cbench::cuda
