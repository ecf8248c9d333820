// Shared by the Mamba 2 kernels: the time step of a row and head.
#pragma once

#include "device.cuh"
#include "mamba.h"

namespace cbench::cuda {

struct MambaProblem {
  const bf16* in;
  const bf16* conv;
  void* readout;
  bf16* y;
  float* conv_state;
  float* state;
  DeviceBatch batch;
  const float* conv_weight;
  const float* conv_bias;  // or null
  const float* neg_exp_a;
  const float* dt_bias;
  const float* d;
  const float* norm;
  float eps, dt_min, dt_max;
  int heads, head_dim, groups, states, taps, inner, conv_rows;
  int64_t width;

  /// Columns of B and of C of a head among the convolution's channels.
  __device__ __forceinline__ int b_column(int head) const {
    return inner + head / (heads / groups) * states;
  }
  __device__ __forceinline__ int c_column(int head) const {
    return b_column(head) + groups * states;
  }
  __device__ __forceinline__ float time_step(float raw, int head) const {
    return fminf(fmaxf(softplus(raw + dt_bias[head]), dt_min), dt_max);
  }
  __device__ __forceinline__ float time_step(size_t row, int head) const {
    return time_step(to_float(in[row * width + inner + conv_rows + head]), head);
  }
};

inline MambaProblem mamba_problem(const MambaCall& call, const MambaScratch& scratch) {
  const Mamba2Spec& s = *call.spec;
  MambaProblem p{};
  p.in = static_cast<const bf16*>(call.in);
  p.conv = static_cast<const bf16*>(scratch.conv);
  p.readout = scratch.readout;
  p.y = static_cast<bf16*>(call.y);
  p.conv_state = call.state.conv;
  p.state = call.state.recurrent;
  p.batch = call.batch;
  p.conv_weight = s.conv_weight, p.conv_bias = s.conv_bias;
  p.neg_exp_a = s.neg_exp_a, p.dt_bias = s.dt_bias, p.d = s.d;
  p.norm = s.out_norm.weight, p.eps = s.out_norm.eps;
  p.dt_min = s.dt_min, p.dt_max = s.dt_max;
  p.heads = static_cast<int>(s.heads), p.head_dim = static_cast<int>(s.head_dim);
  p.groups = static_cast<int>(s.groups), p.states = static_cast<int>(s.state);
  p.taps = static_cast<int>(s.conv), p.inner = static_cast<int>(s.inner());
  p.conv_rows = static_cast<int>(s.conv_rows());
  p.width = call.width();
  return p;
}

}  // namespace cbench::cuda
