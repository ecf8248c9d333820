// One step of a Mamba 2 layer but for its norm: convolution, time step, state, readout. One block
// per head and row; a warp owns 8 of the head's 64 columns, a lane 4 of the 128 states of each. The
// state moves once each way; it and the convolution's history are requested before the projection
// that feeds the step has finished, because a layer's state is older than the last upload or
// replay.
#include "mamba.cuh"

namespace cbench::cuda {
namespace {

constexpr int kDim = 64, kStates = 128, kTaps = 4, kThreads = 256;
constexpr int kWarps = kThreads / 32, kOwn = kDim / kWarps, kChannels = kDim + 2 * kStates;
static_assert(kChannels <= 2 * kThreads);

/// One channel of the convolution.
struct Channel {
  float4 weight;
  float bias, old[kTaps - 1];

  __device__ __forceinline__ void load(const MambaProblem& p, int slot, bool fresh, int channel) {
    const float* state =
        p.conv_state + (static_cast<size_t>(slot) * p.conv_rows + channel) * (kTaps - 1);
    weight = __ldg(reinterpret_cast<const float4*>(p.conv_weight) + channel);
    bias = p.conv_bias ? __ldg(p.conv_bias + channel) : 0.f;
#pragma unroll
    for (int j = 0; j < kTaps - 1; j++) old[j] = fresh ? 0.f : state[j];
  }
  __device__ __forceinline__ float convolve(float x) const {
    return silu(fmaf(weight.x, old[0],
                     fmaf(weight.y, old[1], fmaf(weight.z, old[2], fmaf(weight.w, x, bias)))));
  }
};

__global__ void __launch_bounds__(kThreads) step_kernel(const __grid_constant__ MambaProblem p) {
  __shared__ __align__(16) float channels[kChannels];  // x, B, C
  pdl_trigger();
  const int t = threadIdx.x, lane = t % 32, warp = t / 32, head = blockIdx.x;
  const size_t row = blockIdx.y;
  const int slot = p.batch.spans[p.batch.row_span[row]].slot;
  const bool fresh = p.batch.positions[row] == 0;

  float* state = p.state +
                 ((static_cast<size_t>(slot) * p.heads + head) * kDim + warp * kOwn) * kStates +
                 lane * 4;
  float4 h[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; i++)
    h[i] = fresh ? make_float4(0, 0, 0, 0) : *reinterpret_cast<const float4*>(state + i * kStates);
  const auto channel_of = [&](int i) {  // of x, B, C side by side
    return i < kDim             ? head * kDim + i
           : i < kDim + kStates ? p.b_column(head) + i - kDim
                                : p.c_column(head) + i - kDim - kStates;
  };
  Channel channel[2];
#pragma unroll
  for (int i = 0; i < 2; i++)
    if (t + i * kThreads < kChannels) channel[i].load(p, slot, fresh, channel_of(t + i * kThreads));
  pdl_wait();
#pragma unroll
  for (int i = 0; i < 2; i++)
    if (const int c = t + i * kThreads; c < kChannels)
      channels[c] = channel[i].convolve(to_float(p.in[row * p.width + p.inner + channel_of(c)]));
  const float dt = p.time_step(row, head), decay = expf(dt * p.neg_exp_a[head]);
  __syncthreads();

  const float4 b = *reinterpret_cast<const float4*>(&channels[kDim + lane * 4]);
  const float4 c = *reinterpret_cast<const float4*>(&channels[kDim + kStates + lane * 4]);
  float out = 0;
#pragma unroll
  for (int i = 0; i < kOwn; i++) {
    const float x = channels[warp * kOwn + i], scaled = dt * x;
    h[i] = make_float4(fmaf(scaled, b.x, decay * h[i].x), fmaf(scaled, b.y, decay * h[i].y),
                       fmaf(scaled, b.z, decay * h[i].z), fmaf(scaled, b.w, decay * h[i].w));
    *reinterpret_cast<float4*>(state + i * kStates) = h[i];
    const float dot =
        warp_sum(fmaf(h[i].x, c.x, fmaf(h[i].y, c.y, fmaf(h[i].z, c.z, h[i].w * c.w))));
    if (lane == i) out = fmaf(p.d[head], x, dot);
  }
  if (lane < kOwn)
    static_cast<float*>(p.readout)[row * p.inner + head * kDim + warp * kOwn + lane] = out;
}

}  // namespace

bool mamba_step_takes(const Mamba2Spec& s) {
  return s.head_dim == kDim && s.state == kStates && s.conv == kTaps;
}

void mamba_step(const MambaCall& call, const MambaScratch& scratch) {
  const MambaProblem p = mamba_problem(call, scratch);
  launch(step_kernel, dim3(p.heads, call.batch.rows), kThreads, 0, call.stream, p);
}

}  // namespace cbench::cuda
