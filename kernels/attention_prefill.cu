// Attention of many rows: flash style on tensor cores. A block of 4 warps owns 64 rows of one span
// and one query head and walks the context in tiles of 64 positions with an online softmax; the
// next keys travel while values are multiplied and the other way round. Tiles start at multiples of
// 64 of the context whatever the batch, and a fully masked tile leaves a row's numbers unchanged,
// so a row's result does not depend on how its sequence was cut or packed. With a window, tiles
// that no row of the block sees are skipped.
//
// Head widths 16 and 32 here, 64 and more in attention_flash.cu; others go row by row through
// attention_decode.
#include "attention_prefill.cuh"
#include "mma.cuh"

namespace cbench::cuda {
namespace {

constexpr int kRows = kTileRows, kContext = kPrefillContext, kThreads = 128;

using Problem = PrefillProblem;

template <int kDim>
struct Shared {
  static constexpr int kStride = kDim + 8;
  bf16 q[kRows][kStride];
  bf16 k[kContext][kStride];
  bf16 v[kContext][kStride];
};

/// Requests rows [0, 64) of `from` (row_step elements apart); rows >= valid become zeros.
template <int kDim>
__device__ __forceinline__ void request(bf16 (*to)[kDim + 8], const bf16* from, size_t row_step,
                                        int valid) {
  constexpr int kPerRow = kDim / 8;
#pragma unroll 8
  for (int i = threadIdx.x; i < 64 * kPerRow; i += kThreads) {
    const int row = i / kPerRow, col = i % kPerRow * 8;
    copy_async(shared_address(&to[row][col]), from + (row < valid ? row : 0) * row_step + col,
               row < valid);
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 3) prefill_kernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>(raw);
  constexpr int kStride = Shared<kDim>::kStride;
  pdl_begin();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x;
  const auto [rows, row0, position0, length, start, q_step, kv_step, cache] =
      prefill_tile<kDim>(p, head);
  const bf16* keys = p.k + cache;
  const bf16* values = p.v + cache;

  request<kDim>(shared.q, p.q + row0 * q_step + head * kDim, q_step, rows);
  request<kDim>(shared.k, keys + start * kv_step, kv_step, min(kContext, length - start));
  copy_commit();
  request<kDim>(shared.v, values + start * kv_step, kv_step, min(kContext, length - start));
  copy_commit();

  const Tile<kStride> tq(&shared.q[0][0]), tk(&shared.k[0][0]), tv(&shared.v[0][0]);
  float out[kDim / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  const int my_row = warp * 16 + lane / 4;  // and 8 below
  for (int from = start; from < length; from += kContext) {
    copy_wait<1>();
    __syncthreads();
    float score[kContext / 8][4] = {};
#pragma unroll
    for (int d = 0; d < kDim; d += 16) {
      uint32_t a[4], b[4];
      tq.a(a, warp * 16, d);
#pragma unroll
      for (int n = 0; n < kContext; n += 16) {
        tk.b_rows_n(b, n, d);
        mma(score[n / 8], a, b[0], b[1]);
        mma(score[n / 8 + 1], a, b[2], b[3]);
      }
    }
    __syncthreads();  // keys are used up
    const int next = from + kContext;
    if (next < length)
      request<kDim>(shared.k, keys + next * kv_step, kv_step, min(kContext, length - next));
    copy_commit();

    if (from + kContext > position0 + warp * 16) {  // some of the warp's rows see only a part
#pragma unroll
      for (int n = 0; n < kContext / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int context = from + n * 8 + lane % 4 * 2 + i % 2;
          if (context > position0 + my_row + i / 2 * 8) score[n][i] = -INFINITY;
        }
    }
    if (from <= position0 + warp * 16 + 15 - p.window) {  // left behind by some of them
#pragma unroll
      for (int n = 0; n < kContext / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int context = from + n * 8 + lane % 4 * 2 + i % 2;
          if (context <= position0 + my_row + i / 2 * 8 - p.window) score[n][i] = -INFINITY;
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float most = top[half];
#pragma unroll
      for (int n = 0; n < kContext / 8; n++)
        most = fmaxf(most, fmaxf(score[n][2 * half], score[n][2 * half + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      // A row that has seen nothing yet keeps its zeros.
      const float base = most == -INFINITY ? 0.f : most * p.scale_log2;
      const float shrink = exp2f(fmaf(top[half], p.scale_log2, -base));
      top[half] = most;
      float total = 0;
#pragma unroll
      for (int n = 0; n < kContext / 8; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++) {
          score[n][i] = exp2f(fmaf(score[n][i], p.scale_log2, -base));
          total += score[n][i];
        }
      sum[half] = sum[half] * shrink + total;
#pragma unroll
      for (int d = 0; d < kDim / 8; d++) out[d][2 * half] *= shrink, out[d][2 * half + 1] *= shrink;
    }

    copy_wait<1>();
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kContext; n += 16) {
      uint32_t b[4];
      const uint32_t a[4] = {pack(score[n / 8][0], score[n / 8][1]),
                             pack(score[n / 8][2], score[n / 8][3]),
                             pack(score[n / 8 + 1][0], score[n / 8 + 1][1]),
                             pack(score[n / 8 + 1][2], score[n / 8 + 1][3])};
#pragma unroll
      for (int d = 0; d < kDim; d += 16) {
        tv.b_rows_k(b, n, d);
        mma(out[d / 8], a, b[0], b[1]);
        mma(out[d / 8 + 1], a, b[2], b[3]);
      }
    }
    __syncthreads();  // values are used up
    if (next < length)
      request<kDim>(shared.v, values + next * kv_step, kv_step, min(kContext, length - next));
    copy_commit();
  }

#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = my_row + half * 8;
    sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
    sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
    if (row >= rows) continue;
    const float inverse = 1.f / sum[half];
    bf16* y = p.y + (row0 + row) * q_step + head * kDim;
    const bf16* gate = p.gate ? p.gate + (row0 + row) * p.width + head * 2 * kDim : nullptr;
#pragma unroll
    for (int d = 0; d < kDim / 8; d++) {
      const int col = d * 8 + lane % 4 * 2;
      float v0 = out[d][2 * half] * inverse, v1 = out[d][2 * half + 1] * inverse;
      if (gate) v0 *= sigmoid(to_float(gate[col])), v1 *= sigmoid(to_float(gate[col + 1]));
      *reinterpret_cast<uint32_t*>(y + col) = pack(v0, v1);
    }
  }
}

template <int kDim>
void run(const Problem& p, cudaStream_t stream) {
  static const bool ready = [] {
    allow_shared(prefill_kernel<kDim>, sizeof(Shared<kDim>));
    return true;
  }();
  (void)ready;
  launch(prefill_kernel<kDim>, dim3(p.query_heads, p.batch.tile_count), kThreads,
         sizeof(Shared<kDim>), stream, p);
}

}  // namespace

bool attention_prefill_takes(const AttentionSpec& s) {
  const int64_t d = s.head_dim;
  return d == 16 || d == 32 || attention_flash_takes(d);
}

void attention_prefill(const AttentionCall& call) {
  const AttentionSpec& s = *call.spec;
  Problem p{};
  p.q = static_cast<const bf16*>(call.q);
  p.k = static_cast<const bf16*>(call.cache.k);
  p.v = static_cast<const bf16*>(call.cache.v);
  p.gate = s.gated ? static_cast<const bf16*>(call.qkv) + s.head_dim : nullptr;
  p.y = static_cast<bf16*>(call.y);
  p.batch = call.batch;
  p.query_heads = static_cast<int>(s.query_heads);
  p.kv_heads = static_cast<int>(s.kv_heads);
  p.max_length = call.cache.max_length;
  p.width = call.width();
  p.scale_log2 = s.scale * 1.4426950408889634f;
  p.window = static_cast<int>(s.window > 0 ? std::min<int64_t>(s.window, INT32_MAX) : INT32_MAX);
  if (attention_flash_takes(s.head_dim)) return attention_flash(p, s.head_dim, call.stream);
  switch (s.head_dim) {
    case 16:
      return run<16>(p, call.stream);
    default:
      return run<32>(p, call.stream);
  }
}

}  // namespace cbench::cuda
