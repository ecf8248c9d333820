// The router: scores of all experts in fp32, then the best of each row. Equals the CPU's route.
//
// A step's scores: one block of 4 warps per expert, whose weights are requested before the previous
// kernel has finished and serve up to 8 rows. Many rows: tiles of 128 rows x 64 experts on tensor
// cores, the fp32 weights as sums of three BF16 numbers. The choice: one warp per row, by
// keys that order as the scores do.
#include <algorithm>
#include <string>
#include <type_traits>

#include "mma.cuh"
#include "route_choice.cuh"
#include "util/error.h"

namespace cbench::cuda {
namespace {

constexpr int kChoiceWarps = 4;  // rows of a block
constexpr size_t kMostShared = kChoiceWarps * kChoiceWords * kMostExperts * sizeof(float);

template <int kPer>
__global__ void __launch_bounds__(kChoiceWarps * 32)
    choose_kernel(const __grid_constant__ Choice p) {
  extern __shared__ float shared[];
  pdl_begin();
  const int warp = threadIdx.x / 32, row = blockIdx.x * kChoiceWarps + warp;
  if (row < p.rows) choose<kPer>(p, row, shared + warp * kChoiceWords * p.spec.experts);
}

constexpr int kWarps = 4, kThreads = kWarps * 32, kRowsPer = 8;
constexpr int kUnit = 256, kUnits = 4;  // columns of a warp's request; requests held in registers

struct Scores {
  const float* w;
  const bf16* x;
  float* logits;
  int rows, experts, width;
};

/// Up to kRowsPer rows are also routed here: by the block that finishes last, which `arrived` (0
/// between launches) tells. Who that is changes no number.
template <int kPer>
__global__ void __launch_bounds__(kThreads)
    step_scores(const __grid_constant__ Scores p, const __grid_constant__ Choice choice,
                unsigned* arrived) {
  extern __shared__ float shared[];
  __shared__ bool last;
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
  if (!arrived) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int row = warp; row < rows; row += kWarps)
    choose<kPer>(choice, row, shared + warp * kChoiceWords * p.experts);
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

constexpr int kRowTile = 128, kExpertTileRows = 64, kSlab = 32, kTileThreads = 256;
constexpr int kStride = kSlab + 8, kParts = 3;

struct ScoreSlab {
  bf16 x[kRowTile * kStride], w[kParts][kExpertTileRows * kStride];
};

/// Requests 8 weights of the slab from `from` on, as fp32.
struct WeightLoader {
  const float* w;
  int col, place, width;
  float4 held[2];

  __device__ WeightLoader(const Scores& p, int expert0) : width(p.width) {
    const int row = threadIdx.x / 4;
    col = threadIdx.x % 4 * 8, place = row * kStride + col;
    w = p.w + static_cast<size_t>(min(expert0 + row, p.experts - 1)) * p.width + col;
  }
  __device__ __forceinline__ void request(int from) {
    held[0] = held[1] = make_float4(0, 0, 0, 0);
    if (from + col >= width) return;
    held[0] = __ldg(reinterpret_cast<const float4*>(w + from));
    held[1] = __ldg(reinterpret_cast<const float4*>(w + from + 4));
  }
  /// Three BF16 numbers hold a weight's 24 bits, so that the products are those of fp32. Tells
  /// whether the first did not do.
  __device__ __forceinline__ bool split(ScoreSlab& to) const {
    bool more = false;
    float v[8] = {held[0].x, held[0].y, held[0].z, held[0].w,
                  held[1].x, held[1].y, held[1].z, held[1].w};
#pragma unroll
    for (int part = 0; part < kParts; part++) {
      const uint4 packed = pack8(v);
      *reinterpret_cast<uint4*>(to.w[part] + place) = packed;
      float taken[8];
      unpack(packed, taken);
#pragma unroll
      for (int i = 0; i < 8; i++) v[i] -= taken[i], more |= part == 0 && v[i] != 0;
    }
    return more;
  }
};

__device__ __forceinline__ void request_rows(const Scores& p, ScoreSlab& to, int row0, int from) {
#pragma unroll
  for (int i = threadIdx.x; i < kRowTile * (kSlab / 8); i += kTileThreads) {
    const int row = i / (kSlab / 8), col = i % (kSlab / 8) * 8;
    const bool inside = row0 + row < p.rows && from + col < p.width;
    copy_async(shared_address(to.x + row * kStride + col),
               p.x + (inside ? static_cast<size_t>(row0 + row) * p.width + from + col : 0), inside);
  }
  copy_commit();
}

__global__ void __launch_bounds__(kTileThreads, 2) tile_scores(const __grid_constant__ Scores p) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto* slabs = reinterpret_cast<ScoreSlab*>(raw);  // two
  pdl_begin();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int expert0 = blockIdx.x * kExpertTileRows, row0 = blockIdx.y * kRowTile;
  const int m0 = warp % 4 * 32, n0 = warp / 4 * 32;
  WeightLoader weights(p, expert0);
  request_rows(p, slabs[0], row0, 0);
  weights.request(0);
  float sum[2][4][4] = {};
  for (int k0 = 0, turn = 0; k0 < p.width; k0 += kSlab, turn ^= 1) {
    ScoreSlab& now = slabs[turn];
    const bool more = weights.split(now);
    copy_wait<0>();
    const int parts = __syncthreads_or(more) ? kParts : 1;  // BF16 weights need no more
    if (k0 + kSlab < p.width) {
      request_rows(p, slabs[turn ^ 1], row0, k0 + kSlab);
      weights.request(k0 + kSlab);
    }
    const Tile<kStride> tx(now.x);
#pragma unroll
    for (int k = 0; k < kSlab; k += 16) {
      uint32_t a[2][4], b[4];
      tx.a(a[0], m0, k);
      tx.a(a[1], m0 + 16, k);
#pragma unroll
      for (int part = kParts - 1; part >= 0; part--) {
        if (part >= parts) continue;
        const Tile<kStride> tw(now.w[part]);
#pragma unroll
        for (int n = 0; n < 2; n++) {
          tw.b_rows_n(b, n0 + n * 16, k);
#pragma unroll
          for (int m = 0; m < 2; m++) {
            mma(sum[m][2 * n], a[m], b[0], b[1]);
            mma(sum[m][2 * n + 1], a[m], b[2], b[3]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = row0 + m0 + m * 16 + lane / 4 + i / 2 * 8;
        const int expert = expert0 + n0 + n * 8 + lane % 4 * 2 + i % 2;
        if (row < p.rows && expert < p.experts)
          p.logits[static_cast<size_t>(row) * p.experts + expert] = sum[m][n][i];
      }
}

/// f with the keys per lane as a constant.
template <class F>
void with_keys(int64_t experts, F f) {
  if (experts <= 128) {
    f(std::integral_constant<int, 4>());
  } else if (experts <= 256) {
    f(std::integral_constant<int, 8>());
  } else if (experts <= 512) {
    f(std::integral_constant<int, 16>());
  } else {
    f(std::integral_constant<int, 32>());
  }
}

}  // namespace

void route_rows(const RouterSpec& spec, const void* x, int64_t rows, int64_t width, bool step,
                float* logits, unsigned* arrived, const Routing& routing, cudaStream_t stream) {
  if (spec.experts > kMostExperts || spec.groups > kMostRouterGroups || spec.top_k > spec.experts) {
    throw UsageError("unsupported_model", "a router of the best " + std::to_string(spec.top_k) +
                                              " of " + std::to_string(spec.experts) +
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
  const Choice choice{logits, spec, routing, static_cast<int>(rows)};
  const size_t shared =
      kChoiceWarps * kChoiceWords * static_cast<size_t>(spec.experts) * sizeof(float);
  const bool vectors = width % 8 == 0 && aligned(x) && aligned(spec.weight);
  bool chosen = false;
  if (!vectors) {
    launch(scores_any, dim3(n, experts), 32, 0, stream, s);
  } else if (step) {
    const dim3 grid(experts, static_cast<unsigned>(ceil_div(rows, kRowsPer)));
    chosen = grid.y == 1;
    with_keys(spec.experts, [&](auto per) {
      static const bool wide = (allow_shared(step_scores<per()>, kMostShared), true);
      (void)wide;
      launch(step_scores<per()>, grid, kThreads, chosen ? shared : 0, stream, s, choice,
             chosen ? arrived : nullptr);
    });
  } else {
    static const bool ready = (allow_shared(tile_scores, 2 * sizeof(ScoreSlab)), true);
    (void)ready;
    const dim3 grid(static_cast<unsigned>(ceil_div(experts, kExpertTileRows)),
                    static_cast<unsigned>(ceil_div(rows, kRowTile)));
    launch(tile_scores, grid, kTileThreads, 2 * sizeof(ScoreSlab), stream, s);
  }
  if (chosen) return;
  with_keys(spec.experts, [&](auto per) {
    launch(choose_kernel<per()>, static_cast<unsigned>(ceil_div(rows, kChoiceWarps)),
           kChoiceWarps * 32, shared, stream, choice);
  });
}

}  // namespace cbench::cuda
