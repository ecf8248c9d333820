// The part of the gated delta rule that every tile of 64 rows does alone: T, w, u and the masked
// scores (delta_chunk.cuh). Three blocks per SM hide each other's chains of small products.
#include "delta_chunk.cuh"

namespace cbench::cuda {
namespace {

using namespace delta_chunk;

struct PrepareShared {
  union {  // q is used up when T is there
    bf16 q[kRows * kWide];
    struct {
      bf16 tw[kRows * kNarrow], tu[kRows * kNarrow];
    };
  };
  bf16 k[kRows * kWide], v[kRows * kWide];
  float a[kRows][kRows + 4];
  float gamma[kRows], beta[kRows];
};

/// Gates of the tile's rows: beta and the cumulative g, by the first warp.
__device__ void gates(const Problem& p, PrepareShared& s, int row0, int rows, int head) {
  const int lane = threadIdx.x;
  float g[2], total = 0;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = lane * 2 + i;
    g[i] = 0;
    s.beta[row] = 0;
    if (row < rows) {
      const bf16* ba = p.in + (row0 + row) * p.width + p.conv_rows + p.value_heads * kDim + head;
      s.beta[row] = sigmoid(to_float(ba[0]));
      g[i] = p.neg_exp_a[head] * softplus(to_float(ba[p.value_heads]) + p.dt_bias[head]);
    }
    total += g[i];
  }
  float sum = total;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const float other = __shfl_up_sync(~0u, sum, o);
    if (lane >= o) sum += other;
  }
  s.gamma[lane * 2] = sum - total + g[0];
  s.gamma[lane * 2 + 1] = sum;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = lane * 2 + i;
    if (row < rows) p.gamma[static_cast<size_t>(row0 + row) * p.value_heads + head] = s.gamma[row];
  }
}

/// A to shared memory and the masked q k^T to global memory; a warp takes 16 rows x 32 columns.
__device__ void pair_products(PrepareShared& s, bf16* scores) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row0 = warp % 4 * 16, col0 = warp / 4 * 32;
  const Tile<kWide> tq(s.q), tk(s.k);
  float kk[4][4] = {}, qk[4][4] = {};
  if (col0 <= row0 + 15) {
#pragma unroll
    for (int d = 0; d < kDim; d += 16) {
      uint32_t ak[4], aq[4], b[4];
      tk.a(ak, row0, d);
      tq.a(aq, row0, d);
#pragma unroll
      for (int n = 0; n < 2; n++) {
        tk.b_rows_n(b, col0 + n * 16, d);
        mma(kk[2 * n], ak, b[0], b[1]);
        mma(kk[2 * n + 1], ak, b[2], b[3]);
        mma(qk[2 * n], aq, b[0], b[1]);
        mma(qk[2 * n + 1], aq, b[2], b[3]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int i = row0 + lane / 4 + half * 8, j = col0 + n * 8 + lane % 4 * 2;
      float q[2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float decay = j + e <= i ? __expf(s.gamma[i] - s.gamma[j + e]) : 0.f;
        s.a[i][j + e] = j + e < i ? s.beta[i] * kk[n][2 * half + e] * decay : 0.f;
        q[e] = qk[n][2 * half + e] * decay;
      }
      *reinterpret_cast<uint32_t*>(scores + i * kRows + j) = pack(q[0], q[1]);
    }
}

/// x [16, 32] from row r of A times y [32, 16] from column c, both in s.a; TF32 operands. Fragments
/// as in mma.cuh, for columns c and c + 8.
__device__ __forceinline__ void product_tf32(const PrepareShared& s, int r, int x_col, int y_row,
                                             int c, float (&out)[2][4]) {
  const int group = threadIdx.x % 32 / 4, in_group = threadIdx.x % 4;
  const auto tf32 = [](float v) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
    return bits;
  };
#pragma unroll
  for (int k = 0; k < 32; k += 8) {
    uint32_t x[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      x[i] = tf32(s.a[r + group + i % 2 * 8][x_col + k + in_group + i / 2 * 4]);
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const uint32_t y0 = tf32(s.a[y_row + k + in_group][c + n * 8 + group]);
      const uint32_t y1 = tf32(s.a[y_row + k + in_group + 4][c + n * 8 + group]);
      asm volatile(
          "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
          "{%8,%9}, {%0,%1,%2,%3};"
          : "+f"(out[n][0]), "+f"(out[n][1]), "+f"(out[n][2]), "+f"(out[n][3])
          : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y0), "r"(y1));
    }
  }
}

/// T's element times beta (tu) and minus beta e^gamma (tw) of its column, as operands.
__device__ __forceinline__ void publish_inverse(PrepareShared& s, int row, int col, float t) {
  const float scaled = t * s.beta[col];
  s.tu[row * kNarrow + col] = to_bf16(scaled);
  s.tw[row * kNarrow + col] = to_bf16(-scaled * __expf(s.gamma[col]));
}

/// T = (I + A)^-1 = [T1, 0; -T2 A21 T1, T2]. The two diagonal halves by forward substitution in
/// fp32, one column per thread of the first two warps, in place of A; the corner as two small
/// products.
__device__ void invert(PrepareShared& s) {
  constexpr int kHalf = kRows / 2;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (warp < 2) {
    const int base = warp * kHalf;
    float t[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; i++) {
      float sum[4] = {};
#pragma unroll
      for (int j = 0; j < i; j += 4) {  // A is zero from the diagonal on
        const float4 a = *reinterpret_cast<const float4*>(&s.a[base + i][base + j]);
        sum[0] = fmaf(a.x, t[j], sum[0]);
        if (j + 1 < i) sum[1] = fmaf(a.y, t[j + 1], sum[1]);
        if (j + 2 < i) sum[2] = fmaf(a.z, t[j + 2], sum[2]);
        if (j + 3 < i) sum[3] = fmaf(a.w, t[j + 3], sum[3]);
      }
      t[i] = (i == lane ? 1.f : 0.f) - ((sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kHalf; i++) {
      s.a[base + i][base + lane] = t[i];
      publish_inverse(s, base + i, base + lane, t[i]);
    }
  }
  __syncthreads();
  const int r = warp / 2 * 16, c = warp % 2 * 16, group = lane / 4, in_group = lane % 4;
  if (warp < 4) {  // A21 T1, to the unused corner
    float out[2][4] = {};
    product_tf32(s, kHalf + r, 0, 0, c, out);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        s.a[r + group + i / 2 * 8][kHalf + c + n * 8 + in_group * 2 + i % 2] = out[n][i];
  }
  __syncthreads();
  if (warp < 4) {
    float out[2][4] = {};
    product_tf32(s, kHalf + r, kHalf, 0, kHalf + c, out);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        publish_inverse(s, kHalf + r + group + i / 2 * 8, c + n * 8 + in_group * 2 + i % 2,
                        -out[n][i]);
  }
}

/// to [rows, kDim] = t x; a warp takes 16 rows x 64 columns, and t is lower triangular.
__device__ void apply_inverse(const bf16* t, const bf16* x, int rows, bf16* to, size_t step) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int r0 = warp % 4 * 16, c0 = warp / 4 * 64;
  const Tile<kNarrow> tt(t);
  const Tile<kWide> tx(x);
  float out[8][4] = {};
  for (int j = 0; j <= r0; j += 16) {
    uint32_t a[4], b[4];
    tt.a(a, r0, j);
#pragma unroll
    for (int n = 0; n < 4; n++) {
      tx.b_rows_k(b, j, c0 + n * 16);
      mma(out[2 * n], a, b[0], b[1]);
      mma(out[2 * n + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = r0 + lane / 4 + half * 8;
    if (row >= rows) continue;
#pragma unroll
    for (int n = 0; n < 8; n++)
      *reinterpret_cast<uint32_t*>(to + row * step + c0 + n * 8 + lane % 4 * 2) =
          pack(out[n][2 * half], out[n][2 * half + 1]);
  }
}

__global__ void __launch_bounds__(kThreads, 3) prepare_kernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& s = *reinterpret_cast<PrepareShared*>(raw);
  pdl_begin();
  const int head = blockIdx.x;
  const RowTile tile = p.batch.tiles[blockIdx.y];
  const SpanInfo span = p.batch.spans[tile.span];
  const int row0 = span.row + tile.offset, rows = min(kRows, span.count - tile.offset);
  const int key_head = head / (p.value_heads / p.key_heads);
  const bf16* conv = p.conv + static_cast<size_t>(row0) * p.conv_rows;
  request<kDim>(s.q, conv + key_head * kDim, p.conv_rows, rows);
  request<kDim>(s.k, conv + (p.key_heads + key_head) * kDim, p.conv_rows, rows);
  request<kDim>(s.v, conv + (2 * p.key_heads + head) * kDim, p.conv_rows, rows);
  copy_commit();
  if (threadIdx.x < 32) gates(p, s, row0, rows, head);
  copy_wait<0>();
  __syncthreads();
  pair_products(
      s, p.scores + (static_cast<size_t>(blockIdx.y) * p.value_heads + head) * kRows * kRows);
  __syncthreads();
  invert(s);
  __syncthreads();

  const size_t step = static_cast<size_t>(p.value_heads) * kDim;
  apply_inverse(s.tw, s.k, rows, p.minus_w + row0 * step + head * kDim, step);
  apply_inverse(s.tu, s.v, rows, p.u + row0 * step + head * kDim, step);
}

}  // namespace

bool delta_chunks_take(const DeltaNetSpec& s) { return s.key_dim == kDim && s.value_dim == kDim; }

void delta_chunk_prepare(const DeltaCall& call, const DeltaScratch& scratch) {
  static const bool ready = (allow_shared(prepare_kernel, sizeof(PrepareShared)), true);
  (void)ready;
  const Problem p = problem(call, scratch);
  launch(prepare_kernel, dim3(p.value_heads, call.batch.tile_count), kThreads,
         sizeof(PrepareShared), call.stream, p);
}

size_t delta_scratch_bytes(const DeltaNetSpec& s, int64_t tokens, int64_t sequences) {
  const int64_t tiles = tokens / kTileRows + sequences + 1;
  const DeltaScratch end = delta_scratch(s, tokens, tiles, nullptr);
  return reinterpret_cast<uintptr_t>(end.gamma) +
         static_cast<size_t>(tokens * s.value_heads) * sizeof(float) + 256;
}

DeltaScratch delta_scratch(const DeltaNetSpec& s, int64_t tokens, int64_t tiles, void* base) {
  auto at = reinterpret_cast<uintptr_t>(base);
  const auto take = [&](int64_t bytes) {
    const uintptr_t mine = at;
    at += static_cast<uintptr_t>((bytes + 255) / 256 * 256);
    return reinterpret_cast<void*>(mine);
  };
  const bool chunks = delta_chunks_take(s);
  DeltaScratch scratch{};
  scratch.conv = take(tokens * s.conv_rows() * 2);
  scratch.minus_w = take(chunks ? tokens * s.value_heads * kDim * 2 : 0);
  scratch.u = take(chunks ? tokens * s.value_heads * kDim * 2 : 0);
  scratch.scores = take(chunks ? tiles * s.value_heads * kRows * kRows * 2 : 0);
  scratch.gamma = static_cast<float*>(take(0));
  return scratch;
}

}  // namespace cbench::cuda
