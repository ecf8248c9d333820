// One step of a gated delta net layer in one kernel: convolution, norms, gates, delta rule, gated
// norm.
//
// Heads of 128 x 128. Two blocks per value head take 64 columns of the state each; the blocks of
// one key head form a cluster, because they read the same convolution state (which one of them then
// advances) and because the two halves of a head share the norm of the output. The state moves once
// each way: all of a block's loads are in flight together, and before the projection that feeds the
// step has finished, because a layer's state is older than the last upload or replay.
#include <utility>

#include <cooperative_groups.h>

#include "delta.h"
#include "device.cuh"

namespace cbench::cuda {
namespace {

namespace cg = cooperative_groups;
constexpr int kDim = 128, kHalf = 64, kThreads = 256, kTaps = 4;
constexpr int kGroups = kThreads / (kHalf / 4);  // threads that share 4 columns
constexpr int kOwn = kDim / kGroups;             // state rows per thread

struct Problem {
  const bf16* in;
  bf16* y;
  float* conv_state;
  float* state;
  DeviceBatch batch;
  const float* conv_weight;
  const float* neg_exp_a;
  const float* dt_bias;
  const float* norm;
  float eps;
  int key_heads, value_heads, conv_rows;
  int64_t width;
};

/// One channel of the convolution: taps and state, then its value and what the state becomes.
struct Channel {
  float4 weight;
  float old[kTaps - 1], x, value;

  __device__ __forceinline__ void load(const Problem& p, int slot, bool fresh, int channel) {
    const float* state =
        p.conv_state + (static_cast<size_t>(slot) * p.conv_rows + channel) * (kTaps - 1);
    weight = __ldg(reinterpret_cast<const float4*>(p.conv_weight) + channel);
#pragma unroll
    for (int j = 0; j < kTaps - 1; j++) old[j] = fresh ? 0.f : state[j];
  }
  __device__ __forceinline__ void convolve(const bf16* in) {
    x = to_float(*in);
    value =
        silu(fmaf(weight.x, old[0], fmaf(weight.y, old[1], fmaf(weight.z, old[2], weight.w * x))));
  }
};
__device__ __forceinline__ void advance(const Problem& p, int slot, int channel, const Channel& c) {
  float* state = p.conv_state + (static_cast<size_t>(slot) * p.conv_rows + channel) * (kTaps - 1);
  state[0] = c.old[1], state[1] = c.old[2], state[2] = c.x;
}

__global__ void __launch_bounds__(kThreads) step_kernel(const __grid_constant__ Problem p) {
  __shared__ float qk[2][kDim], v[kHalf], reduce[3][kThreads / 32];
  __shared__ float4 part[2][kThreads / 32][kHalf / 4];
  __shared__ float squares[2];  // of both halves of the head
  pdl_trigger();
  const cg::cluster_group cluster = cg::this_cluster();
  const unsigned rank = cluster.block_rank();
  auto started = cluster.barrier_arrive();  // before one block writes to another's shared memory
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  const int half = blockIdx.x, head = blockIdx.y, per_key = p.value_heads / p.key_heads;
  const int key_head = head / per_key;
  const size_t row = blockIdx.z;
  const int slot = p.batch.spans[p.batch.row_span[row]].slot;
  const bool fresh = p.batch.positions[row] == 0;

  const int group = t / (kHalf / 4), quad = t % (kHalf / 4);
  float* state = p.state +
                 ((static_cast<size_t>(slot) * p.value_heads + head) * kDim + group) * kDim +
                 half * kHalf + quad * 4;
  float4 s[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; i++)
    s[i] = fresh
               ? make_float4(0, 0, 0, 0)
               : *reinterpret_cast<const float4*>(state + static_cast<size_t>(i) * kGroups * kDim);

  // q and k: one channel per thread; v: the first 64 threads.
  const int key_channel = (t < kDim ? 0 : p.key_heads * kDim) + key_head * kDim + t % kDim;
  const int v_channel = 2 * p.key_heads * kDim + head * kDim + half * kHalf + t;
  Channel key{}, value{};
  key.load(p, slot, fresh, key_channel);
  if (t < kHalf) value.load(p, slot, fresh, v_channel);
  pdl_wait();
  key.convolve(p.in + row * p.width + key_channel);
  if (t < kHalf) {
    value.convolve(p.in + row * p.width + v_channel);
    v[t] = value.value;
  }
  const bf16* ba = p.in + row * p.width + p.conv_rows + p.value_heads * kDim + head;
  const float beta = sigmoid(to_float(ba[0]));
  const float decay =
      expf(p.neg_exp_a[head] * softplus(to_float(ba[p.value_heads]) + p.dt_bias[head]));

  const float warp_square = warp_sum(key.value * key.value);
  if (lane == 0) reduce[0][warp] = warp_square;
  __syncthreads();
  const float* mine = &reduce[0][t / kDim * 4];
  const float total = (mine[0] + mine[1]) + (mine[2] + mine[3]);
  qk[t / kDim][t % kDim] =
      key.value * rsqrtf(total + 1e-6f) * (t < kDim ? rsqrtf(static_cast<float>(kDim)) : 1.f);
  __syncthreads();

  // S^T k and S^T q of the old state, and q.k; the new state's output follows from them.
  float4 sk = make_float4(0, 0, 0, 0), sq = sk;
  float k[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; i++) {
    const float q = qk[0][group + i * kGroups];
    k[i] = qk[1][group + i * kGroups];
    sk.x = fmaf(s[i].x, k[i], sk.x), sk.y = fmaf(s[i].y, k[i], sk.y);
    sk.z = fmaf(s[i].z, k[i], sk.z), sk.w = fmaf(s[i].w, k[i], sk.w);
    sq.x = fmaf(s[i].x, q, sq.x), sq.y = fmaf(s[i].y, q, sq.y);
    sq.z = fmaf(s[i].z, q, sq.z), sq.w = fmaf(s[i].w, q, sq.w);
  }
  const auto fold = [](float4 a) {  // the other group of the warp has the same columns
    return make_float4(a.x + __shfl_xor_sync(~0u, a.x, 16), a.y + __shfl_xor_sync(~0u, a.y, 16),
                       a.z + __shfl_xor_sync(~0u, a.z, 16), a.w + __shfl_xor_sync(~0u, a.w, 16));
  };
  sk = fold(sk), sq = fold(sq);
  if (lane < 16) part[0][warp][lane] = sk, part[1][warp][lane] = sq;
  const float dot = warp_sum(t < kDim ? qk[0][t] * qk[1][t] : 0.f);
  if (lane == 0) reduce[1][warp] = dot;
  __syncthreads();
  sk = part[0][0][quad], sq = part[1][0][quad];
#pragma unroll
  for (int i = 1; i < kThreads / 32; i++) {
    const float4 a = part[0][i][quad], b = part[1][i][quad];
    sk = make_float4(sk.x + a.x, sk.y + a.y, sk.z + a.z, sk.w + a.w);
    sq = make_float4(sq.x + b.x, sq.y + b.y, sq.z + b.z, sq.w + b.w);
  }
  const float key_query = (reduce[1][0] + reduce[1][1]) + (reduce[1][2] + reduce[1][3]);
  const float4 x = reinterpret_cast<const float4*>(v)[quad];
  const float4 d = make_float4(beta * (x.x - decay * sk.x), beta * (x.y - decay * sk.y),
                               beta * (x.z - decay * sk.z), beta * (x.w - decay * sk.w));
#pragma unroll
  for (int i = 0; i < kOwn; i++) {
    s[i] = make_float4(fmaf(k[i], d.x, decay * s[i].x), fmaf(k[i], d.y, decay * s[i].y),
                       fmaf(k[i], d.z, decay * s[i].z), fmaf(k[i], d.w, decay * s[i].w));
    *reinterpret_cast<float4*>(state + static_cast<size_t>(i) * kGroups * kDim) = s[i];
  }
  float4 o = make_float4(fmaf(key_query, d.x, decay * sq.x), fmaf(key_query, d.y, decay * sq.y),
                         fmaf(key_query, d.z, decay * sq.z), fmaf(key_query, d.w, decay * sq.w));

  // Norm over both halves: each block tells both its sum.
  cluster.barrier_wait(std::move(started));
  if (warp == 0) {
    const float sum = warp_sum(lane < 16 ? (o.x * o.x + o.y * o.y) + (o.z * o.z + o.w * o.w) : 0.f);
    if (lane < 2) *cluster.map_shared_rank(&squares[half], (rank & ~1u) + lane) = sum;
  }
  cluster.sync();  // also: every block of the key head has read the convolution state
  if (rank == 0) advance(p, slot, key_channel, key);
  if (t < kHalf) advance(p, slot, v_channel, value);
  if (t < 16) {
    const float scale = rsqrtf((squares[0] + squares[1]) / kDim + p.eps);
    const int col = half * kHalf + quad * 4;
    const bf16* z = p.in + row * p.width + p.conv_rows + head * kDim + col;
    const float4 w = __ldg(reinterpret_cast<const float4*>(p.norm + col));
    o.x *= scale * w.x * silu(to_float(z[0])), o.y *= scale * w.y * silu(to_float(z[1]));
    o.z *= scale * w.z * silu(to_float(z[2])), o.w *= scale * w.w * silu(to_float(z[3]));
    *reinterpret_cast<uint2*>(p.y + (row * p.value_heads + head) * kDim + col) = {pack(o.x, o.y),
                                                                                  pack(o.z, o.w)};
  }
}

}  // namespace

bool delta_step_takes(const DeltaNetSpec& s) {
  return s.key_dim == kDim && s.value_dim == kDim && s.conv == kTaps &&
         s.value_heads / s.key_heads <= 4;
}

void delta_step(const DeltaCall& call) {
  const DeltaNetSpec& s = *call.spec;
  Problem p{};
  p.in = static_cast<const bf16*>(call.in);
  p.y = static_cast<bf16*>(call.y);
  p.conv_state = call.state.conv;
  p.state = call.state.recurrent;
  p.batch = call.batch;
  p.conv_weight = s.conv_weight;
  p.neg_exp_a = s.neg_exp_a;
  p.dt_bias = s.dt_bias;
  p.norm = s.out_norm.weight;
  p.eps = s.out_norm.eps;
  p.key_heads = static_cast<int>(s.key_heads);
  p.value_heads = static_cast<int>(s.value_heads);
  p.conv_rows = static_cast<int>(s.conv_rows());
  p.width = call.width();
  const dim3 grid(2, p.value_heads, call.batch.rows);
  launch_cluster(step_kernel, grid, kThreads, dim3(2, p.value_heads / p.key_heads, 1), call.stream,
                 p);
}

}  // namespace cbench::cuda
