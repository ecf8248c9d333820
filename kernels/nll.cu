// Scores and samples of logits rows, near the speed of reading them.
//
// score: one block per row, 4 x 16 bytes in flight per thread while 4 are summed. The index of the
// maximum costs one comparison per 16 values: a thread remembers in which of its batches a new
// maximum came up and looks the place up at the end. x * 0 summed over the row is NaN exactly if a
// value is not finite.
#include "device.cuh"
#include "nll.h"

namespace cbench::cuda {
namespace {

constexpr int kThreads = 256, kInFlight = 4;
constexpr float kLog2e = 1.4426950408889634f;

__device__ __forceinline__ float exp2_fast(float v) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

/// Maximum, sum of exp(x - maximum), and where the maximum is.
struct Partial {
  float most, sum, check;
  int32_t index;
};
__device__ __forceinline__ Partial join(const Partial& a, const Partial& b) {
  Partial r;
  r.most = fmaxf(a.most, b.most);
  // An empty side has -inf and 0: exp2 of -inf is 0, and both empty cannot differ.
  const float wa = a.most == r.most ? 1.f : exp2_fast((a.most - r.most) * kLog2e);
  const float wb = b.most == r.most ? 1.f : exp2_fast((b.most - r.most) * kLog2e);
  r.sum = a.sum * wa + b.sum * wb;
  r.check = a.check + b.check;
  r.index = a.most > b.most || (a.most == b.most && a.index < b.index) ? a.index : b.index;
  return r;
}
__device__ __forceinline__ Partial shuffle(const Partial& a, int o) {
  return {__shfl_xor_sync(~0u, a.most, o), __shfl_xor_sync(~0u, a.sum, o),
          __shfl_xor_sync(~0u, a.check, o), __shfl_xor_sync(~0u, a.index, o)};
}

/// Values of one thread's batch; -inf beyond the row.
template <bool kVector>
struct Values {
  static constexpr int kWidth = kVector ? 4 : 1;
  using Load = std::conditional_t<kVector, float4, float>;
  float x[kInFlight][kWidth];

  __device__ __forceinline__ void load(const float* row, int i, int n) {
#pragma unroll
    for (int j = 0; j < kInFlight; j++) {
#pragma unroll
      for (int e = 0; e < kWidth; e++) x[j][e] = -INFINITY;
      if (i + j * kThreads < n)
        *reinterpret_cast<Load*>(x[j]) =
            __ldcs(reinterpret_cast<const Load*>(row) + i + j * kThreads);
    }
  }
};

/// Rows whose start is 16-byte aligned: float4 loads; kVector = false reads single floats. The next
/// batch is requested before the current one is summed.
template <bool kVector>
__global__ void __launch_bounds__(kThreads, 4)
    score_kernel(const float* logits, const int32_t* targets, int vocab, RowScore* scores) {
  constexpr int kWidth = kVector ? 4 : 1, kBatch = kInFlight * kThreads;
  __shared__ Partial shared[kThreads / 32];
  __shared__ float target_logit;
  pdl_begin();
  const float* row = logits + static_cast<size_t>(blockIdx.x) * vocab;
  const int n = vocab / kWidth;
  Partial mine{-INFINITY, 0, 0, INT32_MAX};
  int best = -1;
  const int target = targets[blockIdx.x];
  const bool has_target = target >= 0 && target < vocab;
  Values<kVector> next;
  next.load(row, threadIdx.x, n);
  for (int i = threadIdx.x; i < n; i += kBatch) {
    const Values<kVector> now = next;
    next.load(row, i + kBatch, n);
    float most = mine.most;
#pragma unroll
    for (int j = 0; j < kInFlight; j++)
#pragma unroll
      for (int e = 0; e < kWidth; e++) most = fmaxf(most, now.x[j][e]);
    if (most > mine.most) best = i;
      // The engine can write to the buffer: the target's logit is the very one that is in the sum.
#pragma unroll
    for (int j = 0; j < kInFlight; j++) {
      if (has_target && i + j * kThreads == target / kWidth) {
#pragma unroll
        for (int e = 0; e < kWidth; e++)
          if (target % kWidth == e) target_logit = now.x[j][e];
      }
    }
    const float base = most == -INFINITY ? 0.f : most;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kInFlight; j++) {
      const bool inside = i + j * kThreads < n;
#pragma unroll
      for (int e = 0; e < kWidth; e++) {
        sum += exp2_fast((now.x[j][e] - base) * kLog2e);
        if (inside) mine.check = fmaf(now.x[j][e], 0.f, mine.check);
      }
    }
    mine.sum = mine.sum * exp2_fast((mine.most - base) * kLog2e) + sum;
    mine.most = most;
  }
  if (best >= 0) {
    for (int j = kInFlight - 1; j >= 0; j--)
      for (int e = kWidth - 1; e >= 0; e--)
        if (best + j * kThreads < n && row[(best + j * kThreads) * kWidth + e] == mine.most)
          mine.index = (best + j * kThreads) * kWidth + e;
  }
#pragma unroll
  for (int o = 16; o; o >>= 1) mine = join(mine, shuffle(mine, o));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kThreads / 32; i++) mine = join(mine, shared[i]);
  const bool finite = mine.check == 0.f;
  RowScore score{};
  score.finite = finite;
  score.argmax = mine.index == INT32_MAX ? 0 : mine.index;
  const bool targeted = finite && has_target;
  score.target_gap = targeted ? mine.most - target_logit : 0.f;
  score.logprob = !finite ? NAN : targeted ? target_logit - mine.most - logf(mine.sum) : 0.f;
  scores[blockIdx.x] = score;
}

constexpr int kParts = 1024;
__global__ void __launch_bounds__(kParts)
    sample_kernel(const float* logits, const double* uniforms, int vocab, int32_t* ids) {
  __shared__ double sums[kParts];
  __shared__ float tops[kParts / 32];
  pdl_begin();
  const float* row = logits + static_cast<size_t>(blockIdx.x) * vocab;
  float top = -INFINITY;
  for (int i = threadIdx.x; i < vocab; i += kParts) top = fmaxf(top, row[i]);
  top = warp_max(top);
  if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
  __syncthreads();
  for (int i = 0; i < kParts / 32; i++) top = fmaxf(top, tops[i]);

  // Part i holds ids [i * length, (i + 1) * length).
  const int length = (vocab + kParts - 1) / kParts, first = threadIdx.x * length;
  double sum = 0;
  for (int i = first; i < min(first + length, vocab); i++)
    sum += static_cast<double>(expf(row[i] - top));
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0;
  for (int i = 0; i < kParts; i++) total += sums[i];
  const double goal = uniforms[blockIdx.x] * total;
  double before = 0;
  int part = 0;
  while (part < kParts - 1 && before + sums[part] <= goal) before += sums[part++];
  // Rounding can carry the walk past the end; then the last id with a probability is taken.
  int chosen = vocab - 1;
  for (int i = part * length; i < vocab; i++) {
    before += static_cast<double>(expf(row[i] - top));
    if (before > goal) {
      chosen = i;
      break;
    }
  }
  while (chosen > 0 && !(expf(row[chosen] - top) > 0)) chosen--;
  ids[blockIdx.x] = chosen;
}

}  // namespace

void score_rows(const float* logits, const int32_t* targets, int64_t rows, int64_t vocab,
                RowScore* scores, cudaStream_t stream) {
  const bool vector = vocab % 4 == 0 && reinterpret_cast<uintptr_t>(logits) % 16 == 0;
  launch(vector ? score_kernel<true> : score_kernel<false>, static_cast<unsigned>(rows), kThreads,
         0, stream, logits, targets, static_cast<int>(vocab), scores);
}

void sample_rows(const float* logits, const double* uniforms, int64_t rows, int64_t vocab,
                 int32_t* ids, cudaStream_t stream) {
  launch(sample_kernel, static_cast<unsigned>(rows), kParts, 0, stream, logits, uniforms,
         static_cast<int>(vocab), ids);
}

}  // namespace cbench::cuda
