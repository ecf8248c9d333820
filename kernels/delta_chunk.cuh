// Shared by the two kernels of the gated delta rule over tiles of 64 rows, heads of 128 x 128, on
// tensor cores (Yang et al. 2024, "Gated Delta Networks"; the chunked form of architecture.md).
// With g the cumulative gate of the tile, every tile alone (delta_chunk_prepare.cu):
//   A = strict_lower(beta_i k_i.k_j e^(g_i - g_j))
//   T = (I + A)^-1
//   u = T (beta v)
//   w = T (beta e^g k)
// and tiles in order (delta_chunk_state.cu):
//   v' = u - w S
//   o = (e^g q) S + lower(q k^T e^(g_i - g_j)) v'
//   S = e^(g_last) S + (e^(g_last - g) k)^T v'
// Differences of gates are taken before exp. T is solved by forward substitution in fp32 in halves
// that are joined by TF32 products; other operands are BF16, sums and S fp32.
#pragma once

#include "delta.h"
#include "mma.cuh"

namespace cbench::cuda::delta_chunk {

constexpr int kDim = 128, kRows = kTileRows, kThreads = 256;
constexpr int kWide = kDim + 8, kNarrow = kRows + 8;  // strides of 128- and 64-column tiles
static_assert(kRows == 64);

struct Problem {
  const bf16* in;
  const bf16* conv;
  bf16* minus_w;
  bf16* u;
  bf16* scores;
  float* gamma;
  bf16* y;
  float* state;
  DeviceBatch batch;
  const float* neg_exp_a;
  const float* dt_bias;
  const float* norm;
  float eps;
  int key_heads, value_heads, conv_rows;
  int64_t width;
};

template <int kCols, int kBlock = kThreads>
constexpr auto request = request_rows<kCols, kRows, kBlock>;

inline Problem problem(const DeltaCall& call, const DeltaScratch& scratch) {
  const DeltaNetSpec& s = *call.spec;
  Problem p{};
  p.in = static_cast<const bf16*>(call.in);
  p.conv = static_cast<const bf16*>(scratch.conv);
  p.minus_w = static_cast<bf16*>(scratch.minus_w);
  p.u = static_cast<bf16*>(scratch.u);
  p.scores = static_cast<bf16*>(scratch.scores);
  p.gamma = scratch.gamma;
  p.y = static_cast<bf16*>(call.y);
  p.state = call.state.recurrent;
  p.batch = call.batch;
  p.neg_exp_a = s.neg_exp_a;
  p.dt_bias = s.dt_bias;
  p.norm = s.out_norm.weight;
  p.eps = s.out_norm.eps;
  p.key_heads = static_cast<int>(s.key_heads);
  p.value_heads = static_cast<int>(s.value_heads);
  p.conv_rows = static_cast<int>(s.conv_rows());
  p.width = call.width();
  return p;
}

}  // namespace cbench::cuda::delta_chunk
