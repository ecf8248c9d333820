// Pairs by expert: a stable counting sort. One warp counts the experts of a chunk of pairs; one
// block turns counts into places and tiles; the warps go through their chunks again and put pairs
// down. Pairs keep their order, so nothing depends on timing. Also the sum over a row's pairs.
#include <string>

#include "device.cuh"
#include "experts.h"
#include "util/error.h"

namespace cbench::cuda {
namespace {

constexpr int kChunk = 1024, kPlaceThreads = 1024, kSumThreads = 256;
static_assert(kPlaceThreads >= kMostExperts);

/// Calls f(pair, expert, rank among the warp's equals, equals) for the pairs of the chunk; rank 0
/// is the first of its equals. The warp converges after each round.
template <class F>
__device__ __forceinline__ void each_pair(const int32_t* expert, int pairs, F f) {
  const int lane = threadIdx.x, base = blockIdx.x * kChunk;
#pragma unroll 4
  for (int i = 0; i < kChunk; i += 32) {
    if (base + i >= pairs) break;
    const int pair = base + i + lane, e = pair < pairs ? expert[pair] : -1;
    const unsigned equals = __match_any_sync(~0u, e);
    const int rank = __popc(equals & ((1u << lane) - 1));
    f(pair, e, rank, __popc(equals));
  }
}

__global__ void count_kernel(const int32_t* expert, int pairs, int experts, int32_t* counts) {
  extern __shared__ int32_t mine[];
  pdl_begin();
  for (int e = threadIdx.x; e < experts; e += 32) mine[e] = 0;
  __syncwarp();
  each_pair(expert, pairs, [&](int, int e, int rank, int equals) {
    if (e >= 0 && rank == 0) mine[e] += equals;
    __syncwarp();
  });
  for (int e = threadIdx.x; e < experts; e += 32) counts[blockIdx.x * experts + e] = mine[e];
}

/// Exclusive prefix sum over the block; `total` is the sum of all.
__device__ int prefix(int value, int32_t* shared, int& total) {
  const int t = threadIdx.x;
  shared[t] = value;
  __syncthreads();
  for (int o = 1; o < kPlaceThreads; o *= 2) {
    const int other = t >= o ? shared[t - o] : 0;
    __syncthreads();
    shared[t] += other;
    __syncthreads();
  }
  const int before = shared[t] - value;
  total = shared[kPlaceThreads - 1];
  __syncthreads();
  return before;
}

/// One thread per expert: counts become each chunk's first place for the expert.
__global__ void __launch_bounds__(kPlaceThreads) place_kernel(ExpertOrder order, int chunks) {
  __shared__ int32_t shared[kPlaceThreads];
  pdl_begin();
  const int e = threadIdx.x, experts = static_cast<int>(order.experts);
  const bool mine = e < experts;
  int count = 0;
#pragma unroll 8
  for (int c = 0; c < chunks; c++) count += mine ? order.counts[c * experts + e] : 0;
  int pairs, tiles;
  const int first = prefix(count, shared, pairs);
  const int own = (count + kExpertTile - 1) / kExpertTile, tile = prefix(own, shared, tiles);
  if (e == 0) order.first[experts] = pairs, order.tile_first[experts] = tiles;
  if (!mine) return;
  order.first[e] = first, order.tile_first[e] = tile;
  for (int i = 0; i < own; i++) order.tile_expert[tile + i] = e;
  int at = first;
#pragma unroll 8
  for (int c = 0; c < chunks; c++) {
    const int n = order.counts[c * experts + e];
    order.counts[c * experts + e] = at;
    at += n;
  }
}

__global__ void scatter_kernel(const int32_t* expert, ExpertOrder order) {
  extern __shared__ int32_t next[];
  pdl_begin();
  const int experts = static_cast<int>(order.experts);
  for (int e = threadIdx.x; e < experts; e += 32) next[e] = order.counts[blockIdx.x * experts + e];
  __syncwarp();
  each_pair(expert, static_cast<int>(order.pairs), [&](int pair, int e, int rank, int equals) {
    const int at = e >= 0 ? next[e] : 0;
    __syncwarp();
    if (e >= 0) {
      order.pair[at + rank] = pair;
      if (rank == 0) next[e] = at + equals;
    }
    __syncwarp();
  });
}

__global__ void __launch_bounds__(kSumThreads)
    combine_kernel(const bf16* pairs, const float* weight, int top_k, int width, bf16* y) {
  pdl_begin();
  const size_t row = blockIdx.x;
  pairs += row * top_k * width;
  weight += row * top_k;
  y += row * width;
  if (width % 8 == 0) {
    for (int c = threadIdx.x * 8; c < width; c += kSumThreads * 8) {
      float sum[8] = {}, v[8];
#pragma unroll 4
      for (int s = 0; s < top_k; s++) {
        unpack(__ldcs(reinterpret_cast<const uint4*>(pairs + static_cast<size_t>(s) * width + c)),
               v);
        const float w = weight[s];
#pragma unroll
        for (int j = 0; j < 8; j++) sum[j] = fmaf(w, v[j], sum[j]);
      }
      *reinterpret_cast<uint4*>(y + c) = pack8(sum);
    }
  } else {
    for (int c = threadIdx.x; c < width; c += kSumThreads) {
      float sum = 0;
      for (int s = 0; s < top_k; s++)
        sum = fmaf(weight[s], to_float(pairs[static_cast<size_t>(s) * width + c]), sum);
      y[c] = to_bf16(sum);
    }
  }
}

__global__ void quotient_kernel(int32_t* index, int n, int divisor) {
  pdl_begin();
  const int i = blockIdx.x * kSumThreads + threadIdx.x;
  if (i < n) index[i] = i / divisor;
}

size_t aligned(int64_t words) { return static_cast<size_t>((words * 4 + 255) / 256 * 256); }

}  // namespace

int64_t expert_tiles(int64_t pairs, int64_t experts) {
  return pairs / kExpertTile + std::min(pairs, experts);
}

size_t expert_order_bytes(int64_t pairs, int64_t experts) {
  return aligned(pairs) + 2 * aligned(experts + 1) + aligned(expert_tiles(pairs, experts)) +
         aligned(ceil_div(pairs, kChunk) * experts);
}

ExpertOrder expert_order(int64_t pairs, int64_t experts, void* base) {
  auto* at = static_cast<unsigned char*>(base);
  const auto take = [&](int64_t words) {
    unsigned char* mine = at;
    at += aligned(words);
    return reinterpret_cast<int32_t*>(mine);
  };
  ExpertOrder order;
  order.pair = take(pairs);
  order.first = take(experts + 1);
  order.tile_first = take(experts + 1);
  order.tile_expert = take(expert_tiles(pairs, experts));
  order.counts = take(ceil_div(pairs, kChunk) * experts);
  order.pairs = pairs, order.experts = experts;
  return order;
}

void sort_pairs(const int32_t* expert, const ExpertOrder& order, cudaStream_t stream) {
  const auto chunks = static_cast<unsigned>(ceil_div(order.pairs, kChunk));
  const size_t shared = static_cast<size_t>(order.experts) * sizeof(int32_t);
  launch(count_kernel, chunks, 32, shared, stream, expert, static_cast<int>(order.pairs),
         static_cast<int>(order.experts), order.counts);
  launch(place_kernel, 1, kPlaceThreads, 0, stream, order, static_cast<int>(chunks));
  launch(scatter_kernel, chunks, 32, shared, stream, expert, order);
}

void combine_pairs(const void* pairs, const float* weight, int64_t rows, int64_t top_k,
                   int64_t width, void* y, cudaStream_t stream) {
  launch(combine_kernel, static_cast<unsigned>(rows), kSumThreads, 0, stream,
         static_cast<const bf16*>(pairs), weight, static_cast<int>(top_k), static_cast<int>(width),
         static_cast<bf16*>(y));
}

void fill_quotients(int32_t* index, int64_t n, int64_t divisor, cudaStream_t stream) {
  launch(quotient_kernel, static_cast<unsigned>(ceil_div(n, kSumThreads)), kSumThreads, 0, stream,
         index, static_cast<int>(n), static_cast<int>(divisor));
}

}  // namespace cbench::cuda
