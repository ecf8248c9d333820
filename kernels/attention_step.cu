// A step's attention over one piece of the context on tensor cores: the up to 16 query heads that
// share a kv head are the rows of the products, so a key or value is read once for all of them.
//
// All keys and values of the piece are requested at once, before the projection that feeds the step
// has finished: what the cache holds of earlier positions is older than the last upload or replay.
// A block normalizes and rotates its queries itself, and the block with the newest position its
// key, which it also appends to the cache. 8 warps take 8 positions each for the scores and a part
// of the columns for the output. Probabilities are rounded to BF16, their sum is not.
#include "attention_decode.cuh"
#include "mma.cuh"

namespace cbench::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kHeads = kStepHeads, kPiece = kDecodeSplit;
static_assert(kPiece == kWarps * 8);

template <int kDim>
struct Shared {
  static constexpr int kStride = kDim + 8, kNarrow = kPiece + 8;
  bf16 k[kPiece * kStride], v[kPiece * kStride], q[kHeads * kStride];
  bf16 weight[kHeads * kNarrow];
  float scratch[kWarps][kDim];  // of prepare_head
  float top[kWarps][kHeads], sum[kWarps][kHeads];
};

/// Requests the piece's rows [begin, end) of a cache; rows before and beyond become zeros, but for
/// the newest, which is not touched.
template <int kDim>
__device__ __forceinline__ void request(bf16* to, const bf16* from, size_t step, int begin, int end,
                                        int newest) {
  constexpr int kPerRow = kDim / 8;
#pragma unroll 8
  for (int i = threadIdx.x; i < kPiece * kPerRow; i += kThreads) {
    const int row = i / kPerRow, col = i % kPerRow * 8;
    const bool valid = row >= begin && row < end;
    if (row != newest)
      copy_async(shared_address(to + row * (kDim + 8) + col), from + (valid ? row * step : 0) + col,
                 valid);
  }
  copy_commit();
}

/// The block's queries and, if it holds the newest position, its key and value, by one warp each.
template <int kDim>
__device__ void prepare(const DecodeProblem& p, Shared<kDim>& s, int row, int position, int newest,
                        int kv_head, int head0, int heads, size_t cache_row) {
  const int warp = threadIdx.x / 32;
  const bf16* qkv = p.qkv + row * p.width;
  const int q_step = kDim * (p.gated ? 2 : 1);
  const bf16* key = qkv + p.query_heads * q_step + kv_head * kDim;
  const bool append = head0 % (p.query_heads / p.kv_heads) == 0;
  const size_t at = (cache_row * p.kv_heads + kv_head) * kDim;
  for (int job = warp; job < heads + (newest >= 0 ? 2 : 0); job += kWarps) {
    if (job < heads) {
      prepare_head(qkv + (head0 + job) * q_step, p.q_norm, p.rope, kDim, position, s.scratch[warp],
                   s.q + job * Shared<kDim>::kStride, nullptr);
    } else if (job == heads) {
      prepare_head(key, p.k_norm, p.rope, kDim, position, s.scratch[warp],
                   s.k + newest * Shared<kDim>::kStride, append ? p.k + at : nullptr);
    } else {
      append_value(p.k_is_v ? key : key + p.kv_heads * kDim, kDim, p.v_norm_eps,
                   s.v + newest * Shared<kDim>::kStride, append ? p.v + at : nullptr);
    }
    __syncwarp();
  }
}

/// Scores of 16 heads x the warp's 8 positions; fragments as in mma.cuh.
template <int kDim>
__device__ __forceinline__ void scores_of(const Shared<kDim>& s, float (&c)[4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Tile<Shared<kDim>::kStride> tq(s.q), tk(s.k);
  float odd[4] = {};
#pragma unroll
  for (int d = 0; d < kDim; d += 32) {
    uint32_t a[4], b[4];
    ldmatrix(b, tk.at(warp * 8 + lane % 8, d + lane / 8 * 8));
    tq.a(a, 0, d);
    mma(c, a, b[0], b[1]);
    tq.a(a, 0, d + 16);
    mma(odd, a, b[2], b[3]);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) c[i] += odd[i];
}

/// Scores become probabilities against the best of the whole piece, with each warp's sums; between
/// the two a barrier.
template <int kDim>
__device__ __forceinline__ void soften(Shared<kDim>& s, const float (&score)[4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = lane / 4;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float top = fmaxf(score[2 * half], score[2 * half + 1]);
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    if (lane % 4 == 0) s.top[warp][head + half * 8] = top;
  }
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float top = -INFINITY;
#pragma unroll
    for (int w = 0; w < kWarps; w++) top = fmaxf(top, s.top[w][head + half * 8]);
    const float a = __expf(score[2 * half] - top), b = __expf(score[2 * half + 1] - top);
    float sum = a + b;
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0) s.sum[warp][head + half * 8] = sum;
    *reinterpret_cast<uint32_t*>(s.weight + (head + half * 8) * Shared<kDim>::kNarrow + warp * 8 +
                                 lane % 4 * 2) = pack(a, b);
  }
}

/// The warp's columns of probabilities times values, to the piece of each head.
template <int kDim, class Piece>
__device__ __forceinline__ void multiply_values(const DecodeProblem& p, const Shared<kDim>& s,
                                                int heads, Piece piece_of) {
  constexpr int kColumns = kDim / kWarps > 16 ? kDim / kWarps : 16;
  const int lane = threadIdx.x % 32, col0 = threadIdx.x / 32 * kColumns, head = lane / 4;
  if (col0 >= kDim) return;
  const Tile<Shared<kDim>::kNarrow> tw(s.weight);
  const Tile<Shared<kDim>::kStride> tv(s.v);
  float out[kColumns / 8][4] = {};
#pragma unroll
  for (int k = 0; k < kPiece; k += 16) {
    uint32_t a[4], b[4];
    tw.a(a, 0, k);
#pragma unroll
    for (int n = 0; n < kColumns; n += 16) {
      tv.b_rows_k(b, k, col0 + n);
      mma(out[n / 8], a, b[0], b[1]);
      mma(out[n / 8 + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    if (head + half * 8 >= heads) continue;
    float* to = p.part + piece_of(head + half * 8) * kDim + col0 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kColumns / 8; n++)
      *reinterpret_cast<float2*>(to + n * 8) = make_float2(out[n][2 * half], out[n][2 * half + 1]);
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads) piece_kernel(const __grid_constant__ DecodeProblem p) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& s = *reinterpret_cast<Shared<kDim>*>(raw);
  constexpr int kStride = Shared<kDim>::kStride;
  pdl_trigger();
  const int row = p.first + blockIdx.z, position = p.batch.positions[row];
  const int seen = first_seen(p, position), base = (seen / kPiece + blockIdx.x) * kPiece;
  if (base > position) return pdl_wait();
  const int kv_head = blockIdx.y / p.pieces, per_kv = p.query_heads / p.kv_heads;
  const int in_kv = blockIdx.y % p.pieces * kHeads, heads = min(kHeads, per_kv - in_kv);
  const int head0 = kv_head * per_kv + in_kv;
  const int newest = position - base < kPiece ? position - base : -1;
  const size_t slot = p.batch.spans[p.batch.row_span[row]].slot;
  const size_t step = static_cast<size_t>(p.kv_heads) * kDim;
  const size_t first = (slot * p.max_length + base) * step + kv_head * kDim;
  const int begin = max(0, seen - base), end = min(kPiece, position - base);
  request<kDim>(s.k, p.k + first, step, begin, end, newest);
  request<kDim>(s.v, p.v + first, step, begin, end, newest);
  for (int i = heads * kStride + threadIdx.x; i < kHeads * kStride; i += kThreads)
    s.q[i] = to_bf16(0);
  pdl_wait();
  prepare<kDim>(p, s, row, position, newest, kv_head, head0, heads, slot * p.max_length + position);
  copy_wait<1>();
  __syncthreads();

  float score[4] = {};
  scores_of<kDim>(s, score);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int context = base + threadIdx.x / 32 * 8 + threadIdx.x % 4 * 2 + i % 2;
    score[i] = context >= seen && context <= position ? score[i] * p.scale : -INFINITY;
  }
  soften(s, score);
  copy_wait<0>();
  __syncthreads();
  const auto piece_of = [&](int h) {
    return (static_cast<size_t>(blockIdx.z) * p.query_heads + head0 + h) * p.splits + blockIdx.x;
  };
  if (threadIdx.x < heads) {
    const int h = threadIdx.x;
    float top = -INFINITY, sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w++) top = fmaxf(top, s.top[w][h]), sum += s.sum[w][h];
    p.norm[piece_of(h)] = make_float2(top, sum);
  }
  multiply_values(p, s, heads, piece_of);
}

template <int kDim>
void run(const DecodeProblem& p, int64_t rows, cudaStream_t stream) {
  static const bool ready = (allow_shared(piece_kernel<kDim>, sizeof(Shared<kDim>)), true);
  (void)ready;
  const dim3 grid(p.splits, p.kv_heads * p.pieces, static_cast<unsigned>(rows));
  launch(piece_kernel<kDim>, grid, kThreads, sizeof(Shared<kDim>), stream, p);
}

}  // namespace

bool attention_step_takes(const AttentionSpec& s) {
  const int64_t d = s.head_dim;
  return d == 64 || d == 128 || d == 256 || d == 512;
}

void attention_step_pieces(const DecodeProblem& p, int64_t rows, cudaStream_t stream) {
  switch (p.head_dim) {
    case 64:
      return run<64>(p, rows, stream);
    case 128:
      return run<128>(p, rows, stream);
    case 256:
      return run<256>(p, rows, stream);
    default:
      return run<512>(p, rows, stream);
  }
}

}  // namespace cbench::cuda
