// The router: scores of all experts in fp32, then the best of each row. Equals the CPU's route.
//
// A step's scores: one block of 4 warps per expert, whose weights are requested before the previous
// kernel has finished and serve up to 8 rows. Many rows: tiles of 64 rows x 64 experts. The choice:
// one warp per row, the best expert `top_k` times, by keys that order as the scores do.
#include <algorithm>
#include <string>

#include "device.cuh"
#include "experts.h"
#include "util/error.h"

namespace cbench::cuda {
namespace {

// --- scores
constexpr int kWarps = 4, kThreads = kWarps * 32, kRowsPer = 8;
constexpr int kUnit = 256, kUnits = 4;  // columns of a warp's request; requests held in registers

struct Scores {
  const float* w;
  const bf16* x;
  float* logits;
  int rows, experts, width;
};

__global__ void __launch_bounds__(kThreads) step_scores(const __grid_constant__ Scores p) {
  __shared__ float part[kWarps][kRowsPer];
  pdl_trigger();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, expert = blockIdx.x;
  const float* w = p.w + static_cast<size_t>(expert) * p.width;
  const int row0 = blockIdx.y * kRowsPer, rows = min(kRowsPer, p.rows - row0);
  const auto column = [&](int base, int u) {
    return base + (u * kWarps + warp) * kUnit + lane * 8;
  };
  float4 held[kUnits][2];
  const auto request = [&](int base) {
#pragma unroll
    for (int u = 0; u < kUnits; u++)
      if (const int col = column(base, u); col < p.width) {
        held[u][0] = __ldg(reinterpret_cast<const float4*>(w + col));
        held[u][1] = __ldg(reinterpret_cast<const float4*>(w + col + 4));
      }
  };
  request(0);
  pdl_wait();
  float sum[kRowsPer] = {};
  for (int base = 0; base < p.width; base += kUnits * kWarps * kUnit) {
    if (base) request(base);
#pragma unroll
    for (int u = 0; u < kUnits; u++) {
      const int col = column(base, u);
      if (col >= p.width) break;
#pragma unroll
      for (int r = 0; r < kRowsPer; r++) {
        if (r >= rows) break;
        float x[8];
        unpack(*reinterpret_cast<const uint4*>(p.x + static_cast<size_t>(row0 + r) * p.width + col),
               x);
        const float4 a = held[u][0], b = held[u][1];
        sum[r] = fmaf(a.x, x[0], fmaf(a.y, x[1], fmaf(a.z, x[2], fmaf(a.w, x[3], sum[r]))));
        sum[r] = fmaf(b.x, x[4], fmaf(b.y, x[5], fmaf(b.z, x[6], fmaf(b.w, x[7], sum[r]))));
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsPer; r++) {
    sum[r] = warp_sum(sum[r]);
    if (lane == 0) part[warp][r] = sum[r];
  }
  __syncthreads();
  const int r = threadIdx.x;
  if (r < rows)
    p.logits[static_cast<size_t>(row0 + r) * p.experts + expert] =
        (part[0][r] + part[1][r]) + (part[2][r] + part[3][r]);
}

/// Any width: one warp per row and expert.
__global__ void scores_any(const __grid_constant__ Scores p) {
  pdl_begin();
  const float* w = p.w + static_cast<size_t>(blockIdx.y) * p.width;
  const bf16* x = p.x + static_cast<size_t>(blockIdx.x) * p.width;
  float sum = 0;
  for (int c = threadIdx.x; c < p.width; c += 32) sum = fmaf(w[c], to_float(x[c]), sum);
  sum = warp_sum(sum);
  if (threadIdx.x == 0) p.logits[static_cast<size_t>(blockIdx.x) * p.experts + blockIdx.y] = sum;
}

constexpr int kTile = 64, kSlab = 32, kTileThreads = 256;

__global__ void __launch_bounds__(kTileThreads) tile_scores(const __grid_constant__ Scores p) {
  __shared__ float xs[kSlab][kTile + 4], ws[kSlab][kTile + 4];
  pdl_begin();
  const int t = threadIdx.x, tx = t % 16, ty = t / 16;
  const int expert0 = blockIdx.x * kTile, row0 = blockIdx.y * kTile;
  const int load_row = t / 4, load_col = t % 4 * 8;  // 8 columns of one row of each operand
  const int x_row = min(row0 + load_row, p.rows - 1),
            w_row = min(expert0 + load_row, p.experts - 1);
  const bf16* x = p.x + static_cast<size_t>(x_row) * p.width + load_col;
  const float* w = p.w + static_cast<size_t>(w_row) * p.width + load_col;
  float sum[4][4] = {};
  for (int k = 0; k < p.width; k += kSlab) {
    float a[8] = {}, b[8] = {};
    if (k + load_col < p.width) {
      unpack(*reinterpret_cast<const uint4*>(x + k), a);
      const float4 b0 = __ldg(reinterpret_cast<const float4*>(w + k));
      const float4 b1 = __ldg(reinterpret_cast<const float4*>(w + k + 4));
      b[0] = b0.x, b[1] = b0.y, b[2] = b0.z, b[3] = b0.w;
      b[4] = b1.x, b[5] = b1.y, b[6] = b1.z, b[7] = b1.w;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 8; j++)
      xs[load_col + j][load_row] = a[j], ws[load_col + j][load_row] = b[j];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSlab; i++) {
      const float4 xv = *reinterpret_cast<const float4*>(&xs[i][ty * 4]);
      const float4 wv = *reinterpret_cast<const float4*>(&ws[i][tx * 4]);
      const float xr[4] = {xv.x, xv.y, xv.z, xv.w}, wr[4] = {wv.x, wv.y, wv.z, wv.w};
#pragma unroll
      for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) sum[r][c] = fmaf(xr[r], wr[c], sum[r][c]);
    }
  }
#pragma unroll
  for (int r = 0; r < 4; r++)
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const int row = row0 + ty * 4 + r, expert = expert0 + tx * 4 + c;
      if (row < p.rows && expert < p.experts)
        p.logits[static_cast<size_t>(row) * p.experts + expert] = sum[r][c];
    }
}

// --- the choice
constexpr int kChoiceWarps = 4;
constexpr uint32_t kTaken = 0, kLeftOut = 1;

struct Choice {
  const float* logits;
  RouterSpec spec;
  Routing routing;
  int rows;
};

/// Orders as the value does, above kLeftOut; NaN comes last.
__device__ __forceinline__ uint32_t key_of(float value) {
  if (isnan(value)) return kLeftOut + 1;
  const uint32_t bits = __float_as_uint(value);
  return max(bits & 0x80000000u ? ~bits : bits | 0x80000000u, kLeftOut + 1);
}
__device__ __forceinline__ float value_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/// Best of keys[from + lane], keys[from + lane + 32], ... below `end`, lowest index on ties.
struct Best {
  uint32_t key = kTaken;
  int index = INT32_MAX;
  __device__ void scan(const uint32_t* keys, int from, int end) {
    key = kTaken, index = INT32_MAX;
    for (int e = from + static_cast<int>(threadIdx.x % 32); e < end; e += 32)
      if (keys[e] > key) key = keys[e], index = e;
  }
  /// The warp's best index.
  __device__ int of_warp() const {
    const uint32_t top = __reduce_max_sync(~0u, key);
    return static_cast<int>(
        __reduce_min_sync(~0u, key == top ? static_cast<unsigned>(index) : unsigned{INT32_MAX}));
  }
};

/// Leaves out the experts of all but the best groups. A group's worth: the sum of its two best.
__device__ void keep_groups(const RouterSpec& spec, uint32_t* keys) {
  const int lane = threadIdx.x % 32, groups = static_cast<int>(spec.groups);
  const int size = static_cast<int>(spec.experts) / groups;
  uint32_t worth = kTaken;
  for (int g = 0; g < groups; g++) {
    Best best;
    best.scan(keys, g * size, (g + 1) * size);
    const int first = best.of_warp();
    const uint32_t first_key = keys[first];
    __syncwarp();
    if (lane == 0) keys[first] = kTaken;
    __syncwarp();
    best.scan(keys, g * size, (g + 1) * size);
    const int second = best.of_warp();
    const float sum =
        value_of(first_key) + (size > 1 ? value_of(keys[min(second, (g + 1) * size - 1)]) : 0.f);
    __syncwarp();
    if (lane == 0) keys[first] = first_key;
    __syncwarp();
    if (lane == g) worth = key_of(sum);
  }
  int better = 0;
  for (int g = 0; g < groups; g++) {
    const uint32_t other = __shfl_sync(~0u, worth, g);
    if (other > worth || (other == worth && g < lane)) better++;
  }
  const unsigned kept = __ballot_sync(~0u, lane < groups && better < spec.kept_groups);
  for (int e = lane; e < groups * size; e += 32)
    if (!(kept >> (e / size) & 1)) keys[e] = kLeftOut;
  __syncwarp();
}

__global__ void __launch_bounds__(kChoiceWarps * 32)
    choose_kernel(const __grid_constant__ Choice p) {
  extern __shared__ float shared[];  // per warp: scores [experts], keys [experts]
  pdl_begin();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = blockIdx.x * kChoiceWarps + warp, experts = static_cast<int>(p.spec.experts);
  if (row >= p.rows) return;
  float* scores = shared + warp * 2 * experts;
  auto* keys = reinterpret_cast<uint32_t*>(scores + experts);
  const float* logits = p.logits + static_cast<size_t>(row) * experts;

  if (p.spec.score == RouterSpec::Score::kSoftmax) {
    float top = -INFINITY, sum = 0;
    for (int e = lane; e < experts; e += 32) top = fmaxf(top, scores[e] = logits[e]);
    top = warp_max(top);
    for (int e = lane; e < experts; e += 32) sum += scores[e] = expf(scores[e] - top);
    sum = warp_sum(sum);
    for (int e = lane; e < experts; e += 32) scores[e] /= sum;
  } else {
    for (int e = lane; e < experts; e += 32) scores[e] = 1.f / (1.f + expf(-logits[e]));
  }
  for (int e = lane; e < experts; e += 32)
    keys[e] = key_of(scores[e] + (p.spec.selection_bias ? p.spec.selection_bias[e] : 0.f));
  __syncwarp();
  if (p.spec.kept_groups < p.spec.groups) keep_groups(p.spec, keys);

  const int top_k = static_cast<int>(p.spec.top_k);
  int32_t* chosen = p.routing.expert + static_cast<size_t>(row) * top_k;
  float* weight = p.routing.weight + static_cast<size_t>(row) * top_k;
  Best best;
  best.scan(keys, 0, experts);
  float total = 1e-20f;  // keeps a row whose scores all underflowed finite
  for (int slot = 0; slot < top_k; slot++) {
    const int winner = best.of_warp();
    total += scores[winner];
    if (winner % 32 == lane) {
      chosen[slot] = winner;
      keys[winner] = kTaken;
      best.scan(keys, 0, experts);
    }
  }
  __syncwarp();
  const float scale = p.spec.normalize ? p.spec.scale / total : p.spec.scale;
  for (int slot = lane; slot < top_k; slot += 32) {
    const int e = chosen[slot];
    weight[slot] = scores[e] * scale * (p.spec.expert_scale ? p.spec.expert_scale[e] : 1.f);
  }
}

}  // namespace

void route_rows(const RouterSpec& spec, const void* x, int64_t rows, int64_t width, bool step,
                float* logits, const Routing& routing, cudaStream_t stream) {
  if (spec.experts > kMostExperts || spec.groups > kMostRouterGroups) {
    throw UsageError("unsupported_model", "a router of " + std::to_string(spec.experts) +
                                              " experts in " + std::to_string(spec.groups) +
                                              " groups is not supported on the GPU; up to 1024 in "
                                              "32 are");
  }
  const Scores s{spec.weight,
                 static_cast<const bf16*>(x),
                 logits,
                 static_cast<int>(rows),
                 static_cast<int>(spec.experts),
                 static_cast<int>(width)};
  const auto experts = static_cast<unsigned>(spec.experts), n = static_cast<unsigned>(rows);
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  if (width % 8 || !aligned(x) || !aligned(spec.weight)) {
    launch(scores_any, dim3(n, experts), 32, 0, stream, s);
  } else if (step) {
    launch(step_scores, dim3(experts, static_cast<unsigned>(ceil_div(rows, kRowsPer))), kThreads, 0,
           stream, s);
  } else {
    const dim3 grid(static_cast<unsigned>(ceil_div(experts, kTile)),
                    static_cast<unsigned>(ceil_div(rows, kTile)));
    launch(tile_scores, grid, kTileThreads, 0, stream, s);
  }
  launch(choose_kernel, static_cast<unsigned>(ceil_div(rows, kChoiceWarps)), kChoiceWarps * 32,
         kChoiceWarps * 2 * static_cast<size_t>(spec.experts) * sizeof(float), stream,
         Choice{logits, spec, routing, static_cast<int>(rows)});
}

}  // namespace cbench::cuda
