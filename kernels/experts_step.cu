// Products of (row, slot) pairs one by one, at the speed of memory: a step's experts. The expert is
// read on the device, so that one recorded step serves any routing.
//
// First half: a warp owns 4 weight rows (2 gate and 2 up rows when gated) over all columns; each
// lane requests 8 times 16 bytes before it multiplies any. Second half: a block owns 4 or 8 output
// rows and its warps take the row's experts in turn, so that the weighted sum over them needs no
// second kernel. Sums have a fixed order: columns within a lane, lanes by shuffles, slots best
// first.
//
// Assumes k % 8 == 0 and 16-byte aligned rows; other shapes take the kernels named any.
#include "experts.cuh"

namespace cbench::cuda {
namespace {

constexpr int kUnit = 256;  // columns of a warp's request
constexpr int kWarps = 8, kThreads = kWarps * 32;

struct Problem {
  const bf16* x;
  const bf16* w;
  bf16* y;
  const int32_t* expert;  // by pair
  const float* weight;    // by pair, for the sum
  const int32_t* order;   // or null
  int first, share, n, k, first_expert, top_k;
};

/// sum[r] += w[r] . x over columns first, first + step, ... of this lane, kUnroll units at a time.
template <int kRows, int kUnroll>
__device__ __forceinline__ void dots(const bf16* const (&row)[kRows], const bf16* x, int k,
                                     int first, int step, float (&sum)[kRows]) {
  for (int col = first; col < k; col += kUnroll * step) {
    uint4 w[kUnroll][kRows], v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; u++)
      if (col + u * step < k) {
#pragma unroll
        for (int r = 0; r < kRows; r++) w[u][r] = stream_load(row[r] + col + u * step);
        v[u] = *reinterpret_cast<const uint4*>(x + col + u * step);
      }
#pragma unroll
    for (int u = 0; u < kUnroll; u++)
      if (col + u * step < k) {
        float a[8], b[8];
        unpack(v[u], a);
#pragma unroll
        for (int r = 0; r < kRows; r++) {
          unpack(w[u][r], b);
#pragma unroll
          for (int i = 0; i < 8; i++) sum[r] = fmaf(b[i], a[i], sum[r]);
        }
      }
  }
}

template <ExpertOutput kOutput>
__global__ void __launch_bounds__(kThreads, 3) pair_kernel(const __grid_constant__ Problem p) {
  constexpr bool kGated = kIsGated<kOutput>;
  constexpr int kRows = 4, kOwn = kGated ? 2 : 4;
  pdl_begin();
  const int lane = threadIdx.x % 32, own0 = (blockIdx.x * kWarps + threadIdx.x / 32) * kOwn;
  if (own0 >= p.n) return;
  const int at = p.first + blockIdx.y, pair = p.order ? p.order[at] : at;
  const bf16* w =
      p.w + static_cast<size_t>(p.expert[pair] - p.first_expert) * (kGated ? 2 : 1) * p.n * p.k;
  const bf16* row[kRows];
#pragma unroll
  for (int r = 0; r < kRows; r++)
    row[r] = w + static_cast<size_t>(min(own0 + r % kOwn, p.n - 1) + (r < kOwn ? 0 : p.n)) * p.k;
  float sum[kRows] = {};
  dots<kRows, 2>(row, p.x + static_cast<size_t>(pair / p.share) * p.k, p.k, lane * 8, kUnit, sum);
#pragma unroll
  for (int r = 0; r < kRows; r++) sum[r] = warp_sum(sum[r]);
  if (lane != 0) return;
#pragma unroll
  for (int r = 0; r < kOwn; r++)
    if (own0 + r < p.n)
      p.y[static_cast<size_t>(pair) * p.n + own0 + r] =
          to_bf16(finish<kOutput>(sum[r], kGated ? sum[kRows - kOwn + r] : 0.f));
}

template <ExpertOutput kOutput>
__global__ void pair_any(const __grid_constant__ Problem p) {
  constexpr bool kGated = kIsGated<kOutput>;
  pdl_begin();
  const int lane = threadIdx.x, n = blockIdx.x, at = p.first + blockIdx.y;
  const int pair = p.order ? p.order[at] : at;
  const bf16* w =
      p.w + static_cast<size_t>(p.expert[pair] - p.first_expert) * (kGated ? 2 : 1) * p.n * p.k;
  const bf16* x = p.x + static_cast<size_t>(pair / p.share) * p.k;
  float dot = 0, dot2 = 0;
  for (int c = lane; c < p.k; c += 32) {
    dot = fmaf(to_float(w[static_cast<size_t>(n) * p.k + c]), to_float(x[c]), dot);
    if constexpr (kGated)
      dot2 = fmaf(to_float(w[static_cast<size_t>(n + p.n) * p.k + c]), to_float(x[c]), dot2);
  }
  dot = warp_sum(dot), dot2 = warp_sum(dot2);
  if (lane == 0) p.y[static_cast<size_t>(pair) * p.n + n] = to_bf16(finish<kOutput>(dot, dot2));
}

/// Few experts per row share the warps: `pieces` warps split an expert's columns.
template <int kRows, int kUnroll>
__global__ void __launch_bounds__(kThreads, kRows == 8 ? 3 : 2)
    sum_kernel(const __grid_constant__ Problem p, int pieces) {
  extern __shared__ float part[];  // [top_k * pieces][kRows]
  pdl_begin();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n0 = blockIdx.x * kRows;
  const int pair0 = blockIdx.y * p.top_k;
  for (int job = warp; job < p.top_k * pieces; job += kWarps) {
    const int slot = job / pieces, piece = job % pieces;
    const bf16* w = p.w + static_cast<size_t>(p.expert[pair0 + slot] - p.first_expert) * p.n * p.k;
    const bf16* row[kRows];
#pragma unroll
    for (int r = 0; r < kRows; r++) row[r] = w + static_cast<size_t>(min(n0 + r, p.n - 1)) * p.k;
    float sum[kRows] = {};
    dots<kRows, kUnroll>(row, p.x + static_cast<size_t>(pair0 + slot) * p.k, p.k,
                         piece * kUnit + lane * 8, pieces * kUnit, sum);
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      sum[r] = warp_sum(sum[r]);
      if (lane == 0) part[job * kRows + r] = sum[r];
    }
  }
  __syncthreads();
  const int mine = threadIdx.x;
  if (mine >= kRows || n0 + mine >= p.n) return;
  float total = 0;
  for (int slot = 0; slot < p.top_k; slot++) {
    float dot = 0;
    for (int i = 0; i < pieces; i++) dot += part[(slot * pieces + i) * kRows + mine];
    total = fmaf(p.weight[pair0 + slot], dot, total);
  }
  p.y[static_cast<size_t>(blockIdx.y) * p.n + n0 + mine] = to_bf16(total);
}

__global__ void sum_any(const __grid_constant__ Problem p) {
  pdl_begin();
  const int lane = threadIdx.x, n = blockIdx.x, pair0 = blockIdx.y * p.top_k;
  float total = 0;
  for (int slot = 0; slot < p.top_k; slot++) {
    const size_t expert = p.expert[pair0 + slot] - p.first_expert;
    const bf16* w = p.w + (expert * p.n + n) * p.k;
    const bf16* x = p.x + static_cast<size_t>(pair0 + slot) * p.k;
    float dot = 0;
    for (int c = lane; c < p.k; c += 32) dot = fmaf(to_float(w[c]), to_float(x[c]), dot);
    total = fmaf(p.weight[pair0 + slot], warp_sum(dot), total);
  }
  if (lane == 0) p.y[static_cast<size_t>(blockIdx.y) * p.n + n] = to_bf16(total);
}

bool vectors(const ExpertProduct& a) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return a.k % 8 == 0 && aligned(a.x) && aligned(a.w);
}

Problem problem(const ExpertProduct& a) {
  Problem p{};
  p.x = static_cast<const bf16*>(a.x);
  p.w = static_cast<const bf16*>(a.w);
  p.y = static_cast<bf16*>(a.y);
  p.share = static_cast<int>(a.share);
  p.n = static_cast<int>(a.n), p.k = static_cast<int>(a.k);
  p.first_expert = static_cast<int>(a.first_expert);
  return p;
}

constexpr int64_t kMostPairs = 32768;  // grid.y is limited to 65535

template <ExpertOutput kOutput>
void run_pairs(Problem p, bool vector, int64_t count, cudaStream_t stream) {
  constexpr int kPerBlock = kWarps * (kIsGated<kOutput> ? 2 : 4);
  const int first = p.first;
  for (int64_t done = 0; done < count; done += kMostPairs) {
    p.first = first + static_cast<int>(done);
    const auto pairs = static_cast<unsigned>(std::min(kMostPairs, count - done));
    if (vector) {
      const dim3 grid(static_cast<unsigned>(ceil_div(p.n, kPerBlock)), pairs);
      launch(pair_kernel<kOutput>, grid, kThreads, 0, stream, p);
    } else {
      launch(pair_any<kOutput>, dim3(p.n, pairs), 32, 0, stream, p);
    }
  }
}

}  // namespace

void expert_pairs(const ExpertProduct& a, const int32_t* expert, const int32_t* order,
                  int64_t first, int64_t count, cudaStream_t stream) {
  Problem p = problem(a);
  p.expert = expert, p.order = order, p.first = static_cast<int>(first);
  switch (a.output) {
    case ExpertOutput::kPlain:
      return run_pairs<ExpertOutput::kPlain>(p, vectors(a), count, stream);
    case ExpertOutput::kSilu:
      return run_pairs<ExpertOutput::kSilu>(p, vectors(a), count, stream);
    case ExpertOutput::kGelu:
      return run_pairs<ExpertOutput::kGelu>(p, vectors(a), count, stream);
    case ExpertOutput::kRelu2:
      return run_pairs<ExpertOutput::kRelu2>(p, vectors(a), count, stream);
  }
}

void expert_sum(const ExpertProduct& a, const Routing& routing, int64_t rows, int64_t top_k,
                cudaStream_t stream) {
  Problem p = problem(a);
  p.expert = routing.expert, p.weight = routing.weight, p.top_k = static_cast<int>(top_k);
  if (!vectors(a)) {
    launch(sum_any, dim3(p.n, static_cast<unsigned>(rows)), 32, 0, stream, p);
    return;
  }
  // Narrow outputs get smaller blocks with more requests each, so that every SM has enough of them.
  const bool wide = a.n >= 2048;
  const int per_block = wide ? 8 : 4, pieces = static_cast<int>(ceil_div(kWarps, top_k));
  const dim3 grid(static_cast<unsigned>(ceil_div(p.n, per_block)), static_cast<unsigned>(rows));
  launch(wide ? sum_kernel<8, 1> : sum_kernel<4, 4>, grid, kThreads,
         static_cast<size_t>(top_k) * pieces * per_block * sizeof(float), stream, p, pieces);
}

}  // namespace cbench::cuda
