// Attention of single rows: the context is split into pieces of kDecodeSplit positions, one block
// per piece and group of query heads that share a kv head; a second kernel joins the pieces.
//
// Within a block each of 8 warps takes 8 positions: all its keys are requested at once, then its
// values; softmax is local to the warp and joined in warp order. Nothing depends on the grid, so a
// row's result is the same alone, in a batch, and with a longer cache.
#include "attention.h"
#include "device.cuh"
#include "util/error.h"

namespace cbench::cuda {
namespace {

constexpr int kWarps = 8, kPerWarp = kDecodeSplit / kWarps, kMaxGroup = 8;

struct Problem {
  const bf16* q;
  const bf16* k;
  const bf16* v;
  float* part;   // [rows, query_heads, splits, head_dim]
  float2* norm;  // [rows, query_heads, splits]: maximum and sum
  DeviceBatch batch;
  int first, query_heads, kv_heads, head_dim, splits, pieces;  // pieces: blocks per kv head
  int64_t max_length;
  float scale;
};

/// kDims consecutive BF16 as floats.
template <int kDims>
__device__ __forceinline__ void load(const bf16* p, float (&f)[kDims]) {
  if constexpr (kDims == 8) {
    unpack(*reinterpret_cast<const uint4*>(p), f);
  } else if constexpr (kDims == 4) {
    const uint2 v = *reinterpret_cast<const uint2*>(p);
    f[0] = low(v.x), f[1] = high(v.x), f[2] = low(v.y), f[3] = high(v.y);
  } else if constexpr (kDims == 2) {
    const uint32_t v = *reinterpret_cast<const uint32_t*>(p);
    f[0] = low(v), f[1] = high(v);
  } else {
    f[0] = to_float(*p);
  }
}

template <int kDims, int kGroup>
__global__ void __launch_bounds__(kWarps * 32) split_kernel(const __grid_constant__ Problem p) {
  extern __shared__ float shared[];  // [kWarps][kGroup][head_dim], then 2 x [kWarps][kGroup]
  pdl_begin();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, split = blockIdx.x;
  const int row = p.first + blockIdx.z, length = p.batch.positions[row] + 1;
  if (split * kDecodeSplit >= length) return;
  const int kv_head = blockIdx.y / p.pieces, per_kv = p.query_heads / p.kv_heads;
  const int in_kv = blockIdx.y % p.pieces * kGroup, group = min(kGroup, per_kv - in_kv);
  const int head0 = kv_head * per_kv + in_kv, d = p.head_dim, dim = lane * kDims;
  const bool active = dim < d;

  const int slot = p.batch.spans[p.batch.row_span[row]].slot;
  const int from = split * kDecodeSplit + warp * kPerWarp;
  const size_t cache = (static_cast<size_t>(slot) * p.max_length + from) * p.kv_heads + kv_head;
  const size_t step = static_cast<size_t>(p.kv_heads) * d;
  const bf16* k = p.k + cache * d + dim;
  const bf16* v = p.v + cache * d + dim;

  float q[kGroup][kDims], score[kGroup][kPerWarp];
#pragma unroll
  for (int g = 0; g < kGroup; g++) {
#pragma unroll
    for (int i = 0; i < kDims; i++) q[g][i] = 0;
    if (active && g < group)
      load(p.q + (static_cast<size_t>(row) * p.query_heads + head0 + g) * d + dim, q[g]);
  }
  float keys[kPerWarp][kDims];
#pragma unroll
  for (int t = 0; t < kPerWarp; t++) {
#pragma unroll
    for (int i = 0; i < kDims; i++) keys[t][i] = 0;
    if (active && from + t < length) load(k + t * step, keys[t]);
  }
#pragma unroll
  for (int t = 0; t < kPerWarp; t++)
#pragma unroll
    for (int g = 0; g < kGroup; g++) {
      float dot = 0;
#pragma unroll
      for (int i = 0; i < kDims; i++) dot = fmaf(q[g][i], keys[t][i], dot);
      score[g][t] = from + t < length ? warp_sum(dot) * p.scale : -INFINITY;
    }

  float most[kGroup], sum[kGroup], out[kGroup][kDims] = {};
#pragma unroll
  for (int t = 0; t < kPerWarp; t++) {
#pragma unroll
    for (int i = 0; i < kDims; i++) keys[t][i] = 0;
    if (active && from + t < length) load(v + t * step, keys[t]);
  }
#pragma unroll
  for (int g = 0; g < kGroup; g++) {
    most[g] = score[g][0];
#pragma unroll
    for (int t = 1; t < kPerWarp; t++) most[g] = fmaxf(most[g], score[g][t]);
    sum[g] = 0;
#pragma unroll
    for (int t = 0; t < kPerWarp; t++) {
      const float weight = from + t < length ? __expf(score[g][t] - most[g]) : 0.f;
      sum[g] += weight;
#pragma unroll
      for (int i = 0; i < kDims; i++) out[g][i] = fmaf(weight, keys[t][i], out[g][i]);
    }
  }

  float* tops = shared + kWarps * kGroup * d;  // [kWarps][kGroup]
  float* sums = tops + kWarps * kGroup;
#pragma unroll
  for (int g = 0; g < kGroup; g++) {
    if (lane == 0) tops[warp * kGroup + g] = most[g], sums[warp * kGroup + g] = sum[g];
    if (active)
#pragma unroll
      for (int i = 0; i < kDims; i++) shared[(warp * kGroup + g) * d + dim + i] = out[g][i];
  }
  __syncthreads();
  for (int at = threadIdx.x; at < group * d; at += kWarps * 32) {
    const int g = at / d, i = at % d;
    float top = -INFINITY, total = 0, value = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w++) top = fmaxf(top, tops[w * kGroup + g]);
#pragma unroll
    for (int w = 0; w < kWarps; w++) {
      const float weight = __expf(tops[w * kGroup + g] - top);  // 0 for a warp beyond the context
      total = fmaf(weight, sums[w * kGroup + g], total);
      value = fmaf(weight, shared[(w * kGroup + g) * d + i], value);
    }
    const size_t piece =
        (static_cast<size_t>(blockIdx.z) * p.query_heads + head0 + g) * p.splits + split;
    p.part[piece * d + i] = value;
    if (i == 0) p.norm[piece] = make_float2(top, total);
  }
}

__global__ void join_kernel(const __grid_constant__ Problem p, const bf16* qkv, int64_t width,
                            bool gated, bf16* y) {
  pdl_begin();
  const int head = blockIdx.x, row = p.first + blockIdx.y, d = p.head_dim;
  const int pieces = p.batch.positions[row] / kDecodeSplit + 1;
  const size_t piece = (static_cast<size_t>(blockIdx.y) * p.query_heads + head) * p.splits;
  float top = -INFINITY, total = 0;
  for (int s = 0; s < pieces; s++) top = fmaxf(top, p.norm[piece + s].x);
  for (int s = 0; s < pieces; s++) {
    const float2 n = p.norm[piece + s];
    total = fmaf(__expf(n.x - top), n.y, total);
  }
  for (int i = threadIdx.x; i < d; i += blockDim.x) {
    float value = 0;
#pragma unroll 8
    for (int s = 0; s < pieces; s++)
      value = fmaf(__expf(p.norm[piece + s].x - top), p.part[(piece + s) * d + i], value);
    value /= total;
    if (gated) value *= sigmoid(to_float(qkv[row * width + head * 2 * d + d + i]));
    y[(static_cast<size_t>(row) * p.query_heads + head) * d + i] = to_bf16(value);
  }
}

template <int kDims, int kGroup>
void run_split(const Problem& p, int64_t rows, cudaStream_t stream) {
  const size_t bytes = (kWarps * kGroup * (p.head_dim + 2)) * sizeof(float);
  static const bool ready = [] {
    allow_shared(split_kernel<kDims, kGroup>, kWarps * kGroup * (32 * kDims + 2) * sizeof(float));
    return true;
  }();
  (void)ready;
  const dim3 grid(p.splits, p.kv_heads * p.pieces, static_cast<unsigned>(rows));
  launch(split_kernel<kDims, kGroup>, grid, kWarps * 32, bytes, stream, p);
}

int group_size(const AttentionSpec& s) {
  const int64_t per_kv = s.query_heads / s.kv_heads;
  for (int size : {1, 2, 4, 6, 8})
    if (per_kv <= size) return size;
  return kMaxGroup;
}

template <int kDims>
void run_split(const Problem& p, int group, int64_t rows, cudaStream_t stream) {
  switch (group) {
    case 1:
      return run_split<kDims, 1>(p, rows, stream);
    case 2:
      return run_split<kDims, 2>(p, rows, stream);
    case 4:
      return run_split<kDims, 4>(p, rows, stream);
    case 6:
      return run_split<kDims, 6>(p, rows, stream);
    default:
      return run_split<kDims, kMaxGroup>(p, rows, stream);
  }
}

}  // namespace

size_t attention_decode_scratch(const AttentionSpec& s, int64_t max_length, int64_t rows) {
  const auto pieces =
      static_cast<size_t>(rows * s.query_heads * ceil_div(max_length, kDecodeSplit));
  return pieces * (s.head_dim * sizeof(float) + sizeof(float2)) + 256;
}

void attention_decode(const AttentionCall& call, int64_t first, int64_t rows, void* scratch) {
  const AttentionSpec& s = *call.spec;
  const int group = group_size(s);
  Problem p{};
  p.q = static_cast<const bf16*>(call.q);
  p.k = static_cast<const bf16*>(call.cache.k);
  p.v = static_cast<const bf16*>(call.cache.v);
  p.batch = call.batch;
  p.first = static_cast<int>(first);
  p.query_heads = static_cast<int>(s.query_heads);
  p.kv_heads = static_cast<int>(s.kv_heads);
  p.head_dim = static_cast<int>(s.head_dim);
  p.splits = static_cast<int>(ceil_div(call.cache.max_length, kDecodeSplit));
  p.pieces = static_cast<int>(ceil_div(s.query_heads / s.kv_heads, group));
  p.max_length = call.cache.max_length;
  p.scale = s.scale;
  p.norm = static_cast<float2*>(scratch);
  p.part = reinterpret_cast<float*>(p.norm + rows * s.query_heads * p.splits);
  if (s.head_dim <= 32) {
    run_split<1>(p, group, rows, call.stream);
  } else if (s.head_dim <= 64 && s.head_dim % 2 == 0) {
    run_split<2>(p, group, rows, call.stream);
  } else if (s.head_dim <= 128 && s.head_dim % 4 == 0) {
    run_split<4>(p, group, rows, call.stream);
  } else if (s.head_dim <= kDecodeMaxHead && s.head_dim % 8 == 0) {
    run_split<8>(p, group, rows, call.stream);
  } else {
    throw UsageError("unsupported_model",
                     "attention heads of width " + std::to_string(s.head_dim) +
                         " are not supported on the GPU; multiples of 8 up to 256 are");
  }
  const dim3 grid(p.query_heads, static_cast<unsigned>(rows));
  launch(join_kernel, grid, s.head_dim > 64 ? 128 : 64, 0, call.stream, p,
         static_cast<const bf16*>(call.qkv), call.width(), s.gated, static_cast<bf16*>(call.y));
}

}  // namespace cbench::cuda
