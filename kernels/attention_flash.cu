// Attention of many rows, flash style on tensor cores of compute capability 9.0. A warpgroup owns
// 64 rows of one span and one query head and walks the context in tiles of 64 positions with an
// online softmax; the next keys travel while values are multiplied and the other way round. Tiles
// start at multiples of 64 of the context whatever the batch, and a fully masked tile leaves a
// row's numbers unchanged, so a row's result does not depend on how its sequence was cut or packed.
// With a window, tiles that no row of the block sees are skipped.
//
// Head widths 64, 128, 256, 512. At 512 two warpgroups share the tiles: each computes all scores
// and half of the output columns, which is what fits the registers.
#include "attention_prefill.cuh"
#include "wgmma.cuh"

namespace cbench::cuda {
namespace {

using Problem = PrefillProblem;
constexpr int kContext = kPrefillContext, kBlockBytes = 64 * 128;  // 64 rows x 64 columns
static_assert(kTileRows == 64);

/// Warpgroups that share the output columns.
template <int kDim>
constexpr int kSplit = kDim > 256 ? 2 : 1;
template <int kDim>
constexpr int kThreads = 128 * kSplit<kDim>;
template <int kDim>
constexpr int kTileBytes = kDim / 64 * kBlockBytes;

/// Requests rows [0, 64) of `from` (row_step elements apart); rows >= valid become zeros. 64
/// columns lie together, swizzled.
template <int kDim>
__device__ __forceinline__ void request(uint32_t to, const bf16* from, size_t row_step, int valid) {
  constexpr int kPerRow = kDim / 8;
#pragma unroll 8
  for (int i = threadIdx.x; i < 64 * kPerRow; i += kThreads<kDim>) {
    const int row = i / kPerRow, chunk = i % kPerRow;
    copy_async(to + chunk / 8 * kBlockBytes + swizzled(row, chunk % 8),
               from + (row < valid ? row : 0) * row_step + chunk * 8, row < valid);
  }
}

/// Columns of score[4 n + i] and rows beneath the thread's first: as in wgmma.cuh.
struct Softmax {
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  /// Scores become probabilities; `shrink` is what earlier output is to be multiplied by.
  __device__ __forceinline__ void step(float (&score)[32], float scale_log2, float (&shrink)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float most = top[half];
#pragma unroll
      for (int n = 0; n < kContext / 8; n++)
        most = fmaxf(most, fmaxf(score[4 * n + 2 * half], score[4 * n + 2 * half + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      // A row that has seen nothing yet keeps its zeros.
      const float base = most == -INFINITY ? 0.f : most * scale_log2;
      shrink[half] = exp2f(fmaf(top[half], scale_log2, -base));
      top[half] = most;
      float total = 0;
#pragma unroll
      for (int n = 0; n < kContext / 8; n++)
#pragma unroll
        for (int i = 4 * n + 2 * half; i < 4 * n + 2 * half + 2; i++) {
          score[i] = exp2f(fmaf(score[i], scale_log2, -base));
          total += score[i];
        }
      sum[half] = sum[half] * shrink[half] + total;
    }
  }
};

/// -inf where the position of a row does not see the context position.
__device__ __forceinline__ void mask(float (&score)[32], int from, int position, int window) {
#pragma unroll
  for (int n = 0; n < kContext / 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int context = from + n * 8 + threadIdx.x % 4 * 2 + i % 2, at = position + i / 2 * 8;
      if (context > at || context <= at - window) score[4 * n + i] = -INFINITY;
    }
}

/// y = gate * out / sum for the thread's two rows.
template <int kOut>
__device__ __forceinline__ void write(const Problem& p, const float (&out)[kOut / 64][32],
                                      const float (&sum)[2], int row0, int my_row, int rows,
                                      int head, int dim, int out0) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = my_row + half * 8;
    float total = sum[half] + __shfl_xor_sync(~0u, sum[half], 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if (row >= rows) continue;
    const float inverse = 1.f / total;
    bf16* y = p.y + (static_cast<size_t>(row0 + row) * p.query_heads + head) * dim;
    const bf16* gate = p.gate ? p.gate + (row0 + row) * p.width + head * 2 * dim : nullptr;
#pragma unroll
    for (int d = 0; d < kOut / 8; d++) {
      const int col = out0 + d * 8 + threadIdx.x % 4 * 2, at = d % 8 * 4 + 2 * half;
      float v0 = out[d / 8][at] * inverse, v1 = out[d / 8][at + 1] * inverse;
      if (gate) v0 *= sigmoid(to_float(gate[col])), v1 *= sigmoid(to_float(gate[col + 1]));
      *reinterpret_cast<uint32_t*>(y + col) = pack(v0, v1);
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads<kDim>, kDim > 256   ? 1
                                                  : kDim > 128 ? 2
                                                               : 3)
    flash_kernel(const __grid_constant__ Problem p) {
  extern __shared__ unsigned char raw[];
  constexpr int kOut = kDim / kSplit<kDim>;
  pdl_begin();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, head = blockIdx.x;
  const int out0 = threadIdx.x / 128 * kOut;  // first output column of the warpgroup
  const PrefillTile tile = prefill_tile<kDim>(p, head);
  const int rows = tile.rows, row0 = tile.row0, position0 = tile.position0, length = tile.length;
  const int start = tile.start;
  const size_t q_step = tile.q_step, kv_step = tile.kv_step, cache = tile.cache;
  const uint32_t sq = (shared_address(raw) + 1023) / 1024 * 1024;
  const uint32_t sk = sq + kTileBytes<kDim>, sv = sk + kTileBytes<kDim>;
  const auto ask = [&](uint32_t to, const bf16* of, int from) {
    if (from < length)
      request<kDim>(to, of + cache + from * kv_step, kv_step, min(kContext, length - from));
    copy_commit();
  };
  request<kDim>(sq, p.q + row0 * q_step + head * kDim, q_step, rows);
  ask(sk, p.k, start);
  ask(sv, p.v, start);

  float out[kOut / 64][32] = {};
  Softmax softmax;
  const int my_row = warp * 16 + lane / 4;  // and 8 below
  for (int from = start; from < length; from += kContext) {
    copy_wait<1>();
    fence_operands();
    __syncthreads();
    float score[32] = {};
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < kDim / 16; d++) {
      const uint32_t at = d / 4 * kBlockBytes;
      wgmma_64x64(score, tile_descriptor(sq + at) + d % 4 * kDescriptorStep,
                  tile_descriptor(sk + at) + d % 4 * kDescriptorStep);
    }
    wgmma_commit();
    wgmma_wait<0>();
    __syncthreads();  // keys are used up
    ask(sk, p.k, from + kContext);

    const int first = position0 + warp * 16;  // some of the warp's rows see only a part
    if (from + kContext > first || from <= first + 15 - p.window)
      mask(score, from, position0 + my_row, p.window);
    float shrink[2];
    softmax.step(score, p.scale_log2, shrink);
#pragma unroll
    for (int b = 0; b < kOut / 64; b++)
#pragma unroll
      for (int i = 0; i < 32; i++) out[b][i] *= shrink[i / 2 % 2];
    uint32_t weight[kContext / 16][4];
#pragma unroll
    for (int n = 0; n < kContext / 16; n++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        weight[n][i] = pack(score[8 * n + 2 * i], score[8 * n + 2 * i + 1]);

    copy_wait<1>();
    fence_operands();
    __syncthreads();
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < kContext / 16; n++)
#pragma unroll
      for (int b = 0; b < kOut / 64; b++)
        wgmma_64x64(
            out[b], weight[n],
            transposed_descriptor(sv + (out0 / 64 + b) * kBlockBytes) + n * kTransposedStep);
    wgmma_commit();
    wgmma_wait<0>();
    __syncthreads();  // values are used up
    ask(sv, p.v, from + kContext);
  }
  write<kOut>(p, out, softmax.sum, row0, my_row, rows, head, kDim, out0);
}

template <int kDim>
void run(const Problem& p, cudaStream_t stream) {
  constexpr size_t kBytes = 3 * kTileBytes<kDim> + 1024;
  static const bool ready = (allow_shared(flash_kernel<kDim>, kBytes), true);
  (void)ready;
  launch(flash_kernel<kDim>, dim3(p.query_heads, p.batch.tile_count), kThreads<kDim>, kBytes,
         stream, p);
}

}  // namespace

bool attention_flash_takes(int64_t dim) {
  return dim == 64 || dim == 128 || dim == 256 || dim == 512;
}

void attention_flash(const PrefillProblem& p, int64_t dim, cudaStream_t stream) {
  switch (dim) {
    case 64:
      return run<64>(p, stream);
    case 128:
      return run<128>(p, stream);
    case 256:
      return run<256>(p, stream);
    default:
      return run<512>(p, stream);
  }
}

}  // namespace cbench::cuda
