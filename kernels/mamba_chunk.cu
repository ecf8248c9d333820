// Mamba 2 over tiles of 64 rows on tensor cores: heads of 64 columns with 128 states. One block per
// span and head goes through the span's tiles in order, with the state h in fp32 registers. With g
// the cumulative dt A of the tile:
//   y_i = sum over j <= i of (C_i . B_j) e^(g_i - g_j) dt_j x_j  +  e^(g_i) h C_i  +  D x_i
//   h   = e^(g_last) h + sum over j of e^(g_last - g_j) (dt_j x_j) B_j^T
// Differences of g are taken before exp. dt, g and h are fp32, operands BF16, sums fp32. Rows
// beyond a tile's end have dt 0 and leave h alone. The readout is rounded to BF16 before the gate.
#include "mamba.cuh"
#include "mma.cuh"

namespace cbench::cuda {
namespace {

constexpr int kDim = 64, kStates = 128, kRows = kTileRows, kThreads = 256;
constexpr int kNarrow = kDim + 8, kWide = kStates + 8;
static_assert(kRows == 64);

struct Shared {
  bf16 b[2][kRows * kWide], x[2][kRows * kNarrow];  // of this tile and the next
  bf16 c[kRows * kWide], state[kDim * kWide];
  bf16 x_decayed[kRows * kNarrow], scores[kRows * kNarrow];
  float dt[2][kRows], g[2][kRows];
};

template <int kCols>
constexpr auto request = request_rows<kCols, kRows, kThreads>;

/// A warp owns 16 rows x 32 columns of the readout, and 16 columns x 64 states of h.
struct Block {
  using Output = float[4][4];
  using State = float[8][4];

  const MambaProblem& p;
  Shared& s;
  SpanInfo span;
  int head, lane, warp, r0, c0, d0, n0, turn = 0;  // turn: which of the two

  __device__ Block(const MambaProblem& problem, Shared& shared)
      : p(problem), s(shared), span(p.batch.spans[blockIdx.y]), head(blockIdx.x) {
    lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    r0 = warp % 4 * 16, c0 = warp / 4 * 32;
    d0 = warp % 4 * 16, n0 = warp / 4 * 64;
  }
  __device__ float* state_at(int n, int half) const {
    const size_t row = (static_cast<size_t>(span.slot) * p.heads + head) * kDim + d0 + lane / 4;
    return p.state + (row + half * 8) * kStates + n0 + n * 8 + lane % 4 * 2;
  }
  /// First row and rows of a tile, numbered from 0.
  __device__ int row_of(int tile) const { return span.row + tile * kRows; }
  __device__ int rows_of(int tile) const { return min(kRows, span.count - tile * kRows); }
  __device__ void request_b_and_x(int tile) const {
    const bf16* conv = p.conv + static_cast<size_t>(row_of(tile)) * p.conv_rows;
    request<kStates>(s.b[tile % 2], conv + p.b_column(head), p.conv_rows, rows_of(tile));
    request<kDim>(s.x[tile % 2], conv + head * kDim, p.conv_rows, rows_of(tile));
    copy_commit();
  }
  __device__ void request_c(int tile) const {
    const bf16* conv = p.conv + static_cast<size_t>(row_of(tile)) * p.conv_rows;
    request<kStates>(s.c, conv + p.c_column(head), p.conv_rows, rows_of(tile));
    copy_commit();
  }
  /// What the projection says about the time steps of a lane's two rows.
  __device__ float2 read_dt(int tile) const {
    const auto at = [&](int row) {
      const size_t from = row_of(tile) + min(row, rows_of(tile) - 1);
      return to_float(p.in[from * p.width + p.inner + p.conv_rows + head]);
    };
    return make_float2(at(lane * 2), at(lane * 2 + 1));
  }
  /// dt and g of the tile's rows, by one warp.
  __device__ void time_steps(int tile, float2 raw) const {
    float dt[2], step[2], sum = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int row = lane * 2 + i;
      dt[i] = row < rows_of(tile) ? p.time_step(i ? raw.y : raw.x, head) : 0.f;
      step[i] = dt[i] * p.neg_exp_a[head];
      sum += step[i];
    }
    const float own = sum;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      const float other = __shfl_up_sync(~0u, sum, o);
      if (lane >= o) sum += other;
    }
    float* g = s.g[tile % 2] + lane * 2;
    s.dt[tile % 2][lane * 2] = dt[0], s.dt[tile % 2][lane * 2 + 1] = dt[1];
    g[0] = sum - own + step[0], g[1] = sum;
  }
  __device__ void publish_state(const State& h) const {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        *reinterpret_cast<uint32_t*>(s.state + (d0 + lane / 4 + half * 8) * kWide + n0 + n * 8 +
                                     lane % 4 * 2) = pack(h[n][2 * half], h[n][2 * half + 1]);
  }
  /// scores = lower(C B^T e^(g_i - g_j) dt_j).
  __device__ void pair_products() const {
    const Tile<kWide> tb(s.b[turn]), tc(s.c);
    const float *g = s.g[turn], *dt = s.dt[turn];
    float cb[4][4] = {};
    if (c0 <= r0 + 15) add_rows<kStates>(cb, tc, r0, tb, c0);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int i = r0 + lane / 4 + half * 8, j = c0 + n * 8 + lane % 4 * 2;
        float v[2];
#pragma unroll
        for (int e = 0; e < 2; e++)
          v[e] = j + e <= i ? cb[n][2 * half + e] * __expf(g[i] - g[j + e]) * dt[j + e] : 0.f;
        *reinterpret_cast<uint32_t*>(s.scores + i * kNarrow + j) = pack(v[0], v[1]);
      }
  }
  /// x_decayed = e^(g_last - g) dt x.
  __device__ void decay_x() const {
    const int row = threadIdx.x / 4, col = threadIdx.x % 4 * 16;
    const float* g = s.g[turn];
    const float scale = __expf(g[kRows - 1] - g[row]) * s.dt[turn][row];
#pragma unroll
    for (int i = 0; i < 16; i += 8) {
      const int at = row * kNarrow + col + i;
      float v[8];
      unpack(*reinterpret_cast<const uint4*>(s.x[turn] + at), v);
#pragma unroll
      for (int j = 0; j < 8; j++) v[j] *= scale;
      *reinterpret_cast<uint4*>(s.x_decayed + at) = pack8(v);
    }
  }
  /// o = e^(g) C h^T.
  __device__ void read_state(Output& o) const {
    add_rows<kStates>(o, Tile<kWide>(s.c), r0, Tile<kWide>(s.state), c0);
    const float scale0 = __expf(s.g[turn][r0 + lane / 4]);
    const float scale1 = __expf(s.g[turn][r0 + lane / 4 + 8]);
#pragma unroll
    for (int n = 0; n < 4; n++)
      o[n][0] *= scale0, o[n][1] *= scale0, o[n][2] *= scale1, o[n][3] *= scale1;
  }
  /// o += scores x.
  __device__ void add_inner(Output& o) const {
    add_lower(o, Tile<kNarrow>(s.scores), r0, Tile<kNarrow>(s.x[turn]), c0);
  }
  /// h = e^(g_last) h + x_decayed^T B.
  __device__ void update_state(State& h) const {
    decay_and_add<kRows>(h, __expf(s.g[turn][kRows - 1]), Tile<kNarrow>(s.x_decayed), d0,
                         Tile<kWide>(s.b[turn]), n0);
  }
  __device__ void write(int tile, const Output& o) const {
    const int row0 = row_of(tile), rows = rows_of(tile);
    const float d = p.d[head];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = r0 + lane / 4 + half * 8;
      if (row >= rows) continue;
      bf16* to =
          static_cast<bf16*>(p.readout) + static_cast<size_t>(row0 + row) * p.inner + head * kDim;
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const int col = c0 + n * 8 + lane % 4 * 2;
        const uint32_t x = *reinterpret_cast<const uint32_t*>(s.x[turn] + row * kNarrow + col);
        *reinterpret_cast<uint32_t*>(to + col) =
            pack(fmaf(d, low(x), o[n][2 * half]), fmaf(d, high(x), o[n][2 * half + 1]));
      }
    }
  }
};

__global__ void __launch_bounds__(kThreads, 2)
    chunk_kernel(const __grid_constant__ MambaProblem p) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& s = *reinterpret_cast<Shared*>(raw);
  pdl_begin();
  Block block(p, s);
  const bool fresh = p.batch.positions[block.span.row] == 0;
  Block::State h = {};
  if (!fresh) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float2 v = *reinterpret_cast<const float2*>(block.state_at(n, half));
        h[n][2 * half] = v.x, h[n][2 * half + 1] = v.y;
      }
  }
  const int tiles = (block.span.count + kRows - 1) / kRows;
  block.request_b_and_x(0);
  block.request_c(0);
  if (block.warp == 0) block.time_steps(0, block.read_dt(0));
  block.publish_state(h);
  for (int tile = 0; tile < tiles; tile++) {
    block.turn = tile % 2;
    const bool more = tile + 1 < tiles, keeps_time = more && block.warp == 0;
    copy_wait<0>();
    __syncthreads();
    if (more) block.request_b_and_x(tile + 1);
    const float2 next_dt = keeps_time ? block.read_dt(tile + 1) : float2{};
    Block::Output o = {};
    block.pair_products();
    block.decay_x();
    block.read_state(o);
    __syncthreads();  // C and the published state are used up
    if (more) block.request_c(tile + 1);
    if (keeps_time) block.time_steps(tile + 1, next_dt);
    block.add_inner(o);
    block.update_state(h);
    block.write(tile, o);
    block.publish_state(h);
  }
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      *reinterpret_cast<float2*>(block.state_at(n, half)) =
          make_float2(h[n][2 * half], h[n][2 * half + 1]);
}

}  // namespace

bool mamba_chunks_take(const Mamba2Spec& s) { return s.head_dim == kDim && s.state == kStates; }

void mamba_chunks(const MambaCall& call, const MambaScratch& scratch) {
  static const bool ready = (allow_shared(chunk_kernel, sizeof(Shared)), true);
  (void)ready;
  const MambaProblem p = mamba_problem(call, scratch);
  launch(chunk_kernel, dim3(p.heads, call.batch.span_count), kThreads, sizeof(Shared), call.stream,
         p);
}

}  // namespace cbench::cuda
