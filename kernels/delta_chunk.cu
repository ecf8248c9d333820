// Gated delta rule over tiles of 64 rows, heads of 128 x 128, on tensor cores (Yang et al. 2024,
// "Gated Delta Networks"; the chunked form of docs/architecture.md):
//   A = strict_lower(beta_i k_i.k_j e^(g_i - g_j)),  T = (I + A)^-1,  g = cumulative gate of the
//   tile u = T (beta v),  w = T (beta e^g k)                                    prepare: every tile
//   alone v' = u - w S,  o = (e^g q) S + lower(q k^T e^(g_i - g_j)) v', S <- e^(g_last) S +
//   (e^(g_last - g) k)^T v'                            state: tiles in order
// Differences of gates are taken before exp. T is solved by forward substitution in fp32 in halves
// that are joined by TF32 products; other operands are BF16, sums and S fp32. The state kernel ends
// with the gated norm.
#include "delta.h"
#include "mma.cuh"

namespace cbench::cuda {
namespace {

constexpr int kDim = 128, kRows = kTileRows, kThreads = 256, kStateThreads = 512;
constexpr int kWide = kDim + 8, kNarrow = kRows + 8;  // strides of 128- and 64-column tiles
static_assert(kRows == 64);

struct Problem {
  const bf16* in;
  const bf16* conv;
  bf16* minus_w;
  bf16* u;
  bf16* scores;
  float* gamma;
  bf16* y;
  float* state;
  DeviceBatch batch;
  const float* neg_exp_a;
  const float* dt_bias;
  const float* norm;
  float eps;
  int key_heads, value_heads, conv_rows;
  int64_t width;
};

/// Requests rows [0, 64) of kCols columns; rows >= valid become zeros.
template <int kCols, int kBlock = kThreads>
__device__ __forceinline__ void request(bf16* to, const bf16* from, size_t row_step, int valid) {
  constexpr int kPerRow = kCols / 8;
#pragma unroll
  for (int i = threadIdx.x; i < kRows * kPerRow; i += kBlock) {
    const int row = i / kPerRow, col = i % kPerRow * 8;
    copy_async(shared_address(to + row * (kCols + 8) + col),
               from + (row < valid ? row : 0) * row_step + col, row < valid);
  }
}

// --- prepare ----------------------------------------------------------------------
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

// --- state ----------------------------------------------------------------------
struct TileInputs {
  bf16 q[kRows * kWide], k[kRows * kWide], w[kRows * kWide];
  bf16 scores[kRows * kNarrow];
};
struct StateShared {
  TileInputs inputs[2];
  bf16 state[kDim * kWide];
  bf16 v[kRows * kWide];          // v'
  bf16 v_decayed[kRows * kWide];  // e^(g_last - g) v'
  float gamma[2][kRows];
  float squares[4][kRows];
};

/// One span and value head, by 16 warps. A warp owns 16 x 64 of S in registers, and 16 x 32 of v'
/// and o.
struct StateBlock {
  static constexpr int kTiles = 4;
  using Output = float[kTiles][4];
  using Pairs = uint32_t[2][kTiles];  // as BF16; the second half is 8 rows below the first
  using State = float[8][4];

  const Problem& p;
  StateShared& s;
  SpanInfo span;
  int head, key_head, lane, warp, r0, c0, k0, s0;

  __device__ StateBlock(const Problem& problem, StateShared& shared)
      : p(problem), s(shared), span(p.batch.spans[blockIdx.y]), head(blockIdx.x) {
    key_head = head / (p.value_heads / p.key_heads);
    lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    r0 = warp % 4 * 16, c0 = warp / 4 * 32;
    k0 = warp % 8 * 16, s0 = warp / 8 * 64;
  }
  __device__ int rows(int tile) const { return min(kRows, span.count - tile * kRows); }

  __device__ void request_tile(int tile) const {
    TileInputs& to = s.inputs[tile % 2];
    const int row0 = span.row + tile * kRows, valid = rows(tile);
    const bf16* conv = p.conv + static_cast<size_t>(row0) * p.conv_rows;
    const size_t step = static_cast<size_t>(p.value_heads) * kDim;
    request<kDim, kStateThreads>(to.q, conv + key_head * kDim, p.conv_rows, valid);
    request<kDim, kStateThreads>(to.k, conv + (p.key_heads + key_head) * kDim, p.conv_rows, valid);
    request<kDim, kStateThreads>(to.w, p.minus_w + row0 * step + head * kDim, step, valid);
    const size_t at = static_cast<size_t>(span.first_tile + tile) * p.value_heads + head;
    request<kRows, kStateThreads>(to.scores, p.scores + at * kRows * kRows, kRows, kRows);
    copy_commit();
  }
  __device__ float read_gamma(int tile) const {
    const int row = min(static_cast<int>(threadIdx.x), rows(tile) - 1);
    return p.gamma[static_cast<size_t>(span.row + tile * kRows + row) * p.value_heads + head];
  }
  /// The warp's part of a tile whose rows are `step` elements apart.
  __device__ void read_pairs(const bf16* start, size_t step, int valid, Pairs& to) const {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = r0 + lane / 4 + half * 8;
#pragma unroll
      for (int n = 0; n < kTiles; n++) {
        const bf16* from = start + row * step + c0 + n * 8 + lane % 4 * 2;
        to[half][n] = row < valid ? *reinterpret_cast<const uint32_t*>(from) : 0u;
      }
    }
  }
  __device__ void read_u(int tile, Pairs& u) const {
    const size_t step = static_cast<size_t>(p.value_heads) * kDim;
    read_pairs(p.u + (span.row + tile * kRows) * step + head * kDim, step, rows(tile), u);
  }
  __device__ void read_z(int tile, Pairs& z) const {
    read_pairs(p.in + (span.row + tile * kRows) * p.width + p.conv_rows + head * kDim, p.width,
               rows(tile), z);
  }
  __device__ void publish_state(const State& state) const {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        *reinterpret_cast<uint32_t*>(s.state + (k0 + lane / 4 + half * 8) * kWide + s0 + n * 8 +
                                     lane % 4 * 2) =
            pack(state[n][2 * half], state[n][2 * half + 1]);
  }
  __device__ float* state_at(int n, int half) const {
    const size_t base = (static_cast<size_t>(span.slot) * p.value_heads + head) * kDim;
    return p.state + (base + k0 + lane / 4 + half * 8) * kDim + s0 + n * 8 + lane % 4 * 2;
  }

  /// v += -w S, o = q S.
  __device__ void apply_state(int buffer, Output& v, Output& o) const {
    const Tile<kWide> tq(s.inputs[buffer].q), tw(s.inputs[buffer].w), ts(s.state);
#pragma unroll
    for (int k = 0; k < kDim; k += 16) {
      uint32_t aq[4], aw[4], b[4];
      tq.a(aq, r0, k);
      tw.a(aw, r0, k);
#pragma unroll
      for (int n = 0; n < kTiles / 2; n++) {
        ts.b_rows_k(b, k, c0 + n * 16);
        mma(v[2 * n], aw, b[0], b[1]);
        mma(v[2 * n + 1], aw, b[2], b[3]);
        mma(o[2 * n], aq, b[0], b[1]);
        mma(o[2 * n + 1], aq, b[2], b[3]);
      }
    }
  }
  __device__ void publish_v(int buffer, const Output& v) const {
    const float last = s.gamma[buffer][kRows - 1];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = r0 + lane / 4 + half * 8;
      const float decay = __expf(last - s.gamma[buffer][row]);
#pragma unroll
      for (int n = 0; n < kTiles; n++) {
        const int at = row * kWide + c0 + n * 8 + lane % 4 * 2;
        const float a = v[n][2 * half], b = v[n][2 * half + 1];
        *reinterpret_cast<uint32_t*>(s.v + at) = pack(a, b);
        *reinterpret_cast<uint32_t*>(s.v_decayed + at) = pack(a * decay, b * decay);
      }
    }
  }
  /// o = e^gamma o + scores v'.
  __device__ void add_inner(int buffer, Output& o) const {
    const Tile<kNarrow> tp(s.inputs[buffer].scores);
    const Tile<kWide> tv(s.v);
    const float scale0 = __expf(s.gamma[buffer][r0 + lane / 4]);
    const float scale1 = __expf(s.gamma[buffer][r0 + lane / 4 + 8]);
#pragma unroll
    for (int n = 0; n < kTiles; n++)
      o[n][0] *= scale0, o[n][1] *= scale0, o[n][2] *= scale1, o[n][3] *= scale1;
    for (int j = 0; j <= r0; j += 16) {
      uint32_t a[4], b[4];
      tp.a(a, r0, j);
#pragma unroll
      for (int n = 0; n < kTiles / 2; n++) {
        tv.b_rows_k(b, j, c0 + n * 16);
        mma(o[2 * n], a, b[0], b[1]);
        mma(o[2 * n + 1], a, b[2], b[3]);
      }
    }
  }
  /// S = e^(g_last) S + k^T (decayed v').
  __device__ void update_state(int buffer, State& state) const {
    const Tile<kWide> tk(s.inputs[buffer].k), tv(s.v_decayed);
    const float decay = __expf(s.gamma[buffer][kRows - 1]);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) state[n][i] *= decay;
#pragma unroll
    for (int t = 0; t < kRows; t += 16) {
      uint32_t a[4], b[4];
      tk.a_transposed(a, k0, t);
#pragma unroll
      for (int n = 0; n < 4; n++) {
        tv.b_rows_k(b, t, s0 + n * 16);
        mma(state[2 * n], a, b[0], b[1]);
        mma(state[2 * n + 1], a, b[2], b[3]);
      }
    }
  }
  __device__ void publish_squares(const Output& o) const {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float square = 0;
#pragma unroll
      for (int n = 0; n < kTiles; n++)
        square += o[n][2 * half] * o[n][2 * half] + o[n][2 * half + 1] * o[n][2 * half + 1];
      square += __shfl_xor_sync(~0u, square, 1);
      square += __shfl_xor_sync(~0u, square, 2);
      if (lane % 4 == 0) s.squares[warp / 4][r0 + lane / 4 + half * 8] = square;
    }
  }
  /// y = norm(o) * weight * silu(z).
  __device__ void write(int tile, const Output& o, const Pairs& z) const {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = r0 + lane / 4 + half * 8;
      if (row >= rows(tile)) continue;
      const float total =
          (s.squares[0][row] + s.squares[1][row]) + (s.squares[2][row] + s.squares[3][row]);
      const float scale = rsqrtf(total / kDim + p.eps);
      const size_t at = span.row + tile * kRows + row;
      bf16* y = p.y + (at * p.value_heads + head) * kDim;
#pragma unroll
      for (int n = 0; n < kTiles; n++) {
        const int col = c0 + n * 8 + lane % 4 * 2;
        const float2 weight = __ldg(reinterpret_cast<const float2*>(p.norm + col));
        *reinterpret_cast<uint32_t*>(y + col) =
            pack(o[n][2 * half] * scale * weight.x * silu(low(z[half][n])),
                 o[n][2 * half + 1] * scale * weight.y * silu(high(z[half][n])));
      }
    }
  }
};

__global__ void __launch_bounds__(kStateThreads, 1)
    state_kernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& s = *reinterpret_cast<StateShared*>(raw);
  pdl_begin();
  const StateBlock block(p, s);
  const int tiles = (block.span.count + kRows - 1) / kRows;
  const bool fresh = p.batch.positions[block.span.row] == 0;
  block.request_tile(0);
  StateBlock::State state = {};
  if (!fresh) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float2 v = *reinterpret_cast<const float2*>(block.state_at(n, half));
        state[n][2 * half] = v.x, state[n][2 * half + 1] = v.y;
      }
  }
  block.publish_state(state);
  StateBlock::Pairs u, z;
  block.read_u(0, u);
  if (threadIdx.x < kRows) s.gamma[0][threadIdx.x] = block.read_gamma(0);

  for (int tile = 0; tile < tiles; tile++) {
    const int buffer = tile % 2;
    copy_wait<0>();
    __syncthreads();
    const bool more = tile + 1 < tiles;
    if (more) block.request_tile(tile + 1);
    StateBlock::Output v, o = {};
#pragma unroll
    for (int n = 0; n < StateBlock::kTiles; n++)
      v[n][0] = low(u[0][n]), v[n][1] = high(u[0][n]), v[n][2] = low(u[1][n]),
      v[n][3] = high(u[1][n]);
    float next_gamma = 0;
    block.read_z(tile, z);
    if (more) {
      block.read_u(tile + 1, u);
      if (threadIdx.x < kRows) next_gamma = block.read_gamma(tile + 1);
    }
    block.apply_state(buffer, v, o);
    block.publish_v(buffer, v);
    __syncthreads();
    block.add_inner(buffer, o);
    block.publish_squares(o);
    block.update_state(buffer, state);
    block.publish_state(state);
    if (more && threadIdx.x < kRows) s.gamma[1 - buffer][threadIdx.x] = next_gamma;
    __syncthreads();
    block.write(tile, o, z);
  }
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      *reinterpret_cast<float2*>(block.state_at(n, half)) =
          make_float2(state[n][2 * half], state[n][2 * half + 1]);
}

Problem problem(const DeltaCall& call, const DeltaScratch& scratch) {
  const DeltaNetSpec& s = *call.spec;
  Problem p{};
  p.in = static_cast<const bf16*>(call.in);
  p.conv = static_cast<const bf16*>(scratch.conv);
  p.minus_w = static_cast<bf16*>(scratch.minus_w);
  p.u = static_cast<bf16*>(scratch.u);
  p.scores = static_cast<bf16*>(scratch.scores);
  p.gamma = scratch.gamma;
  p.y = static_cast<bf16*>(call.y);
  p.state = call.state.recurrent;
  p.batch = call.batch;
  p.neg_exp_a = s.neg_exp_a;
  p.dt_bias = s.dt_bias;
  p.norm = s.out_norm.weight;
  p.eps = s.out_norm.eps;
  p.key_heads = static_cast<int>(s.key_heads);
  p.value_heads = static_cast<int>(s.value_heads);
  p.conv_rows = static_cast<int>(s.conv_rows());
  p.width = call.width();
  return p;
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

void delta_chunk_state(const DeltaCall& call, const DeltaScratch& scratch) {
  static const bool ready = (allow_shared(state_kernel, sizeof(StateShared)), true);
  (void)ready;
  const Problem p = problem(call, scratch);
  launch(state_kernel, dim3(p.value_heads, call.batch.span_count), kStateThreads,
         sizeof(StateShared), call.stream, p);
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
