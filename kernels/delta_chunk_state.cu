// The part of the gated delta rule that goes through a sequence's tiles in order, with the state in
// registers, and ends with the gated norm (delta_chunk.cuh).
#include "delta_chunk.cuh"

namespace cbench::cuda {
namespace {

using namespace delta_chunk;

constexpr int kStateThreads = 512;

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
    add_lower(o, tp, r0, tv, c0);
  }
  /// S = e^(g_last) S + k^T (decayed v').
  __device__ void update_state(int buffer, State& state) const {
    const Tile<kWide> tk(s.inputs[buffer].k), tv(s.v_decayed);
    decay_and_add<kRows>(state, __expf(s.gamma[buffer][kRows - 1]), tk, k0, tv, s0);
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

}  // namespace

void delta_chunk_state(const DeltaCall& call, const DeltaScratch& scratch) {
  static const bool ready = (allow_shared(state_kernel, sizeof(StateShared)), true);
  (void)ready;
  const Problem p = problem(call, scratch);
  launch(state_kernel, dim3(p.value_heads, call.batch.span_count), kStateThreads,
         sizeof(StateShared), call.stream, p);
}

}  // namespace cbench::cuda
