// Attention of single rows: the context is split into pieces of kDecodeSplit positions, one block
// per piece and group of query heads that share a kv head; a second kernel joins the pieces.
//
// A block normalizes and rotates its queries itself, and the block with the newest position its
// key, which (in a step) it also appends to the cache. Each of 16 warps takes 4 positions: all its
// keys and values are requested at once, in a step even before the projection that feeds it has
// finished: what the cache holds of earlier positions is older than the last upload or replay.
// Softmax is local to the warp and joined in warp order. Nothing depends on the grid, so a row's
// result is the same alone, in a batch, and with a longer cache. With a window only the pieces that
// it touches have a block.
#include <algorithm>
#include <string>

#include "attention_decode.cuh"
#include "util/error.h"

namespace cbench::cuda {
namespace {

constexpr int kWarps = 16, kPerWarp = kDecodeSplit / kWarps, kMaxGroup = 8;

/// kDims consecutive BF16, kept packed until they are used.
template <int kDims>
struct Packed {
  uint32_t words[kDims > 1 ? kDims / 2 : 1];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (uint32_t& w : words) w = 0;
  }
  __device__ __forceinline__ void load(const bf16* p) {
    if constexpr (kDims == 16) {
      const uint4 v = *reinterpret_cast<const uint4*>(p),
                  w = *reinterpret_cast<const uint4*>(p + 8);
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
      words[4] = w.x, words[5] = w.y, words[6] = w.z, words[7] = w.w;
    } else if constexpr (kDims == 8) {
      const uint4 v = *reinterpret_cast<const uint4*>(p);
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else if constexpr (kDims == 4) {
      const uint2 v = *reinterpret_cast<const uint2*>(p);
      words[0] = v.x, words[1] = v.y;
    } else if constexpr (kDims == 2) {
      words[0] = *reinterpret_cast<const uint32_t*>(p);
    } else {
      words[0] = *reinterpret_cast<const uint16_t*>(p);
    }
  }
  __device__ __forceinline__ float get(int i) const {
    return i % 2 ? high(words[i / 2]) : low(words[i / 2]);
  }
};

template <int kDims, int kGroup>
struct SplitShared {
  static constexpr int kMaxDim = 32 * kDims;
  float out[kWarps][kGroup][kMaxDim];  // also the scratch of prepare_head
  bf16 q[kGroup][kMaxDim], k[kMaxDim], v[kMaxDim];
  float top[kWarps][kGroup], sum[kWarps][kGroup], weight[kWarps][kGroup];
};

template <int kDims, int kGroup>
__global__ void __launch_bounds__(kWarps * 32, 1)
    split_kernel(const __grid_constant__ DecodeProblem p) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<SplitShared<kDims, kGroup>*>(raw);
  pdl_trigger();
  if (!p.step) pdl_wait();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = p.first + blockIdx.z, position = p.batch.positions[row], length = position + 1;
  const int seen = first_seen(p, position), split = seen / kDecodeSplit + blockIdx.x;
  if (split * kDecodeSplit >= length) {
    if (p.step) pdl_wait();
    return;
  }
  const int kv_head = blockIdx.y / p.pieces, per_kv = p.query_heads / p.kv_heads;
  const int in_kv = blockIdx.y % p.pieces * kGroup, group = min(kGroup, per_kv - in_kv);
  const int head0 = kv_head * per_kv + in_kv, d = p.head_dim, dim = lane * kDims;
  const bool active = dim < d, newest = split == position / kDecodeSplit;

  const int slot = p.batch.spans[p.batch.row_span[row]].slot;
  const int from = split * kDecodeSplit + warp * kPerWarp;
  const size_t slot_row = static_cast<size_t>(slot) * p.max_length;
  const size_t cache = ((slot_row + from) * p.kv_heads + kv_head) * d + dim;
  const size_t step = static_cast<size_t>(p.kv_heads) * d;
  Packed<kDims> keys[kPerWarp], values[kPerWarp];
#pragma unroll
  for (int t = 0; t < kPerWarp; t++) {
    keys[t].clear();
    if (active && from + t >= seen && from + t < position) keys[t].load(p.k + cache + t * step);
  }
#pragma unroll
  for (int t = 0; t < kPerWarp; t++) {
    values[t].clear();
    if (active && from + t >= seen && from + t < position) values[t].load(p.v + cache + t * step);
  }
  if (p.step) pdl_wait();

  const bf16* qkv = p.qkv + row * p.width;
  const int q_step = d * (p.gated ? 2 : 1);
  const bf16* new_key = qkv + p.query_heads * q_step + kv_head * d;
  const bool append = p.step && in_kv == 0;
  const size_t new_row = ((slot_row + position) * p.kv_heads + kv_head) * d;
  for (int job = warp; job < group + (newest ? 2 : 0); job += kWarps) {
    float* scratch = shared.out[warp][0];
    if (job < group) {
      prepare_head(qkv + (head0 + job) * q_step, p.q_norm, p.rope, d, position, scratch,
                   shared.q[job], nullptr);
    } else if (job == group) {
      prepare_head(new_key, p.k_norm, p.rope, d, position, scratch, shared.k,
                   append ? p.k + new_row : nullptr);
    } else {
      append_value(p.k_is_v ? new_key : new_key + p.kv_heads * d, d, p.v_norm_eps, shared.v,
                   append ? p.v + new_row : nullptr);
    }
    __syncwarp();
  }
  __syncthreads();

  Packed<kDims> q[kGroup];
#pragma unroll
  for (int g = 0; g < kGroup; g++) {
    q[g].clear();
    if (active && g < group) q[g].load(&shared.q[g][dim]);
  }
  const auto piece_of = [&](int g) {
    return (static_cast<size_t>(blockIdx.z) * p.query_heads + head0 + g) * p.splits + blockIdx.x;
  };
  const auto visible = [&](int t) { return from + t >= seen && from + t < length; };
  float score[kGroup][kPerWarp];
#pragma unroll
  for (int t = 0; t < kPerWarp; t++) {
    if (active && from + t == position) {
      keys[t].load(&shared.k[dim]);
      values[t].load(&shared.v[dim]);
    }
#pragma unroll
    for (int g = 0; g < kGroup; g++) {
      float dot = 0;
#pragma unroll
      for (int i = 0; i < kDims; i++) dot = fmaf(q[g].get(i), keys[t].get(i), dot);
      score[g][t] = visible(t) ? warp_sum(dot) * p.scale : -INFINITY;
    }
  }
  __syncthreads();  // the scratch of prepare_head becomes the output
#pragma unroll
  for (int g = 0; g < kGroup; g++) {
    float most = score[g][0], sum = 0, out[kDims] = {};
#pragma unroll
    for (int t = 1; t < kPerWarp; t++) most = fmaxf(most, score[g][t]);
#pragma unroll
    for (int t = 0; t < kPerWarp; t++) {
      const float weight = visible(t) ? __expf(score[g][t] - most) : 0.f;
      sum += weight;
#pragma unroll
      for (int i = 0; i < kDims; i++) out[i] = fmaf(weight, values[t].get(i), out[i]);
    }
    if (lane == 0) shared.top[warp][g] = most, shared.sum[warp][g] = sum;
    if (active)
#pragma unroll
      for (int i = 0; i < kDims; i++) shared.out[warp][g][dim + i] = out[i];
  }
  __syncthreads();
  if (threadIdx.x < group) {
    const int g = threadIdx.x;
    float top = -INFINITY, total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w++) top = fmaxf(top, shared.top[w][g]);
#pragma unroll
    for (int w = 0; w < kWarps; w++) {
      const float weight = __expf(shared.top[w][g] - top);  // 0 for a warp beyond the context
      shared.weight[w][g] = weight;
      total = fmaf(weight, shared.sum[w][g], total);
    }
    p.norm[piece_of(g)] = make_float2(top, total);
  }
  __syncthreads();
  for (int at = threadIdx.x; at < group * d; at += kWarps * 32) {
    const int g = at / d, i = at % d;
    float value = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w++) value = fmaf(shared.weight[w][g], shared.out[w][g][i], value);
    p.part[piece_of(g) * d + i] = value;
  }
}

constexpr int kJoinDims = 256, kJoinGroups = 4, kJoinThreads = kJoinDims * kJoinGroups;
constexpr int kJoinPieces = 256;

/// One block per row, head and kJoinDims dims. Each of kJoinGroups groups of threads adds every
/// kJoinGroups-th piece, in ascending order; the groups are added in order.
__global__ void __launch_bounds__(kJoinThreads)
    join_kernel(const __grid_constant__ DecodeProblem p) {
  __shared__ float weight[kJoinPieces], reduce[kJoinThreads / 32], part[kJoinGroups][kJoinDims];
  pdl_begin();
  const int head = blockIdx.x, row = p.first + blockIdx.y, d = p.head_dim, t = threadIdx.x;
  const int dim = blockIdx.z * kJoinDims + t % kJoinDims, group = t / kJoinDims;
  const int position = p.batch.positions[row];
  const int pieces = position / kDecodeSplit - first_seen(p, position) / kDecodeSplit + 1;
  const size_t piece = (static_cast<size_t>(blockIdx.y) * p.query_heads + head) * p.splits;
  const float2* norm = p.norm + piece;
  float gate = 0;
  if (p.gated && group == 0 && dim < d)
    gate = to_float(p.qkv[row * p.width + head * 2 * d + d + dim]);

  float top = -INFINITY;
  for (int s = t; s < pieces; s += kJoinThreads) top = fmaxf(top, norm[s].x);
  top = warp_max(top);
  if (t % 32 == 0) reduce[t / 32] = top;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kJoinThreads / 32; i++) top = fmaxf(top, reduce[i]);
  __syncthreads();

  float value = 0, total = 0;
  for (int base = 0; base < pieces; base += kJoinPieces) {
    const int count = min(kJoinPieces, pieces - base);
    float mine = 0;
    if (t < count) {
      const float2 n = norm[base + t];
      weight[t] = __expf(n.x - top);
      mine = weight[t] * n.y;
    }
    total += block_sum<kJoinThreads>(mine, reduce);  // ends with a barrier: the weights are there
    if (dim < d) {
      const float* from = p.part + (piece + base) * d + dim;
#pragma unroll 8
      for (int s = group; s < count; s += kJoinGroups)
        value = fmaf(weight[s], from[static_cast<size_t>(s) * d], value);
    }
    __syncthreads();
  }
  part[group][t % kJoinDims] = value;
  __syncthreads();
  if (group > 0 || dim >= d) return;
  value = ((part[0][t] + part[1][t]) + (part[2][t] + part[3][t])) / total;
  if (p.gated) value *= sigmoid(gate);
  p.y[(static_cast<size_t>(row) * p.query_heads + head) * d + dim] = to_bf16(value);
}

template <int kDims, int kGroup>
void run_split(const DecodeProblem& p, int64_t rows, cudaStream_t stream) {
  constexpr size_t kBytes = sizeof(SplitShared<kDims, kGroup>);
  static const bool ready = (allow_shared(split_kernel<kDims, kGroup>, kBytes), true);
  (void)ready;
  const dim3 grid(p.splits, p.kv_heads * p.pieces, static_cast<unsigned>(rows));
  launch(split_kernel<kDims, kGroup>, grid, kWarps * 32, kBytes, stream, p);
}

/// Query heads per block. Wide heads leave shared memory for four.
int group_size(const AttentionSpec& s) {
  const int64_t per_kv = s.query_heads / s.kv_heads;
  const int most = s.head_dim > 256 ? 4 : kMaxGroup;
  for (int size : {1, 2, 4, 6, 8})
    if (per_kv <= size) return std::min(size, most);
  return most;
}

/// Pieces that one row's context can touch.
int64_t split_count(const AttentionSpec& s, int64_t max_length) {
  const int64_t all = ceil_div(max_length, kDecodeSplit);
  return s.window > 0 ? std::min(all, ceil_div(s.window, kDecodeSplit) + 1) : all;
}

template <int kDims>
void run_split(const DecodeProblem& p, int group, int64_t rows, cudaStream_t stream) {
  switch (group) {
    case 1:
      return run_split<kDims, 1>(p, rows, stream);
    case 2:
      return run_split<kDims, 2>(p, rows, stream);
    case 4:
      return run_split<kDims, 4>(p, rows, stream);
    case 6:
      if constexpr (kDims <= 8) return run_split<kDims, 6>(p, rows, stream);
      break;
    default:
      if constexpr (kDims <= 8) return run_split<kDims, kMaxGroup>(p, rows, stream);
  }
}

void run_split(const DecodeProblem& p, int group, int64_t rows, cudaStream_t stream) {
  const int d = p.head_dim;
  if (d <= 32) return run_split<1>(p, group, rows, stream);
  if (d <= 64 && d % 2 == 0) return run_split<2>(p, group, rows, stream);
  if (d <= 128 && d % 4 == 0) return run_split<4>(p, group, rows, stream);
  if (d <= 256 && d % 8 == 0) return run_split<8>(p, group, rows, stream);
  if (d <= kDecodeMaxHead && d % 16 == 0) return run_split<16>(p, group, rows, stream);
  throw UsageError(
      "unsupported_model",
      "attention heads of width " + std::to_string(d) +
          " are not supported on the GPU; multiples of 8 up to 256 and of 16 up to 512 are");
}

DecodeProblem problem(const AttentionCall& call, int64_t first, int64_t rows, void* scratch) {
  const AttentionSpec& s = *call.spec;
  DecodeProblem p{};
  p.qkv = static_cast<const bf16*>(call.qkv);
  p.k = static_cast<bf16*>(call.cache.k);
  p.v = static_cast<bf16*>(call.cache.v);
  p.y = static_cast<bf16*>(call.y);
  p.batch = call.batch;
  p.q_norm = s.q_norm;
  p.k_norm = s.k_norm;
  p.rope = s.rope;
  p.first = static_cast<int>(first);
  p.query_heads = static_cast<int>(s.query_heads);
  p.kv_heads = static_cast<int>(s.kv_heads);
  p.head_dim = static_cast<int>(s.head_dim);
  p.splits = static_cast<int>(split_count(s, call.cache.max_length));
  p.pieces = static_cast<int>(ceil_div(s.query_heads / s.kv_heads, group_size(s)));
  p.max_length = call.cache.max_length;
  p.width = call.width();
  p.scale = s.scale;
  p.gated = s.gated;
  p.step = call.step;
  p.window = static_cast<int>(s.window > 0 ? std::min<int64_t>(s.window, INT32_MAX) : INT32_MAX);
  p.v_norm_eps = s.v_norm_eps;
  p.k_is_v = s.k_is_v;
  p.norm = static_cast<float2*>(scratch);
  p.part = reinterpret_cast<float*>(p.norm + rows * s.query_heads * p.splits);
  return p;
}

}  // namespace

size_t attention_decode_scratch(const AttentionSpec& s, int64_t max_length, int64_t rows) {
  const auto pieces = static_cast<size_t>(rows * s.query_heads * split_count(s, max_length));
  return pieces * (s.head_dim * sizeof(float) + sizeof(float2)) + 256;
}

void attention_decode(const AttentionCall& call, int64_t first, int64_t rows, void* scratch) {
  DecodeProblem p = problem(call, first, rows, scratch);
  if (call.step && attention_step_takes(*call.spec)) {
    p.pieces = static_cast<int>(ceil_div(p.query_heads / p.kv_heads, kStepHeads));
    attention_step_pieces(p, rows, call.stream);
  } else {
    run_split(p, group_size(*call.spec), rows, call.stream);
  }
  const dim3 grid(p.query_heads, static_cast<unsigned>(rows),
                  static_cast<unsigned>(ceil_div(p.head_dim, kJoinDims)));
  launch(join_kernel, grid, kJoinThreads, 0, call.stream, p);
}

}  // namespace cbench::cuda
