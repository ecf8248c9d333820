// Gated delta rule row by row, for head shapes that the tensor core kernels do not take. One block
// per span and value head, one thread per column of the state, which lives in shared memory; all
// fp32.
#include "delta.h"
#include "device.cuh"
#include "util/error.h"

namespace cbench::cuda {
namespace {

constexpr int kThreads = 256;
constexpr size_t kMostShared = size_t{200} << 10;

struct Problem {
  const bf16* in;
  const bf16* conv;
  bf16* y;
  float* state;
  DeviceBatch batch;
  const float* neg_exp_a;
  const float* dt_bias;
  const float* norm;
  float eps;
  int key_heads, value_heads, key_dim, value_dim, conv_rows;
  int64_t width;
};

__global__ void __launch_bounds__(kThreads) rows_kernel(const __grid_constant__ Problem p) {
  extern __shared__ float shared[];  // state [key_dim][value_dim], q [key_dim], k [key_dim]
  __shared__ float reduce[kThreads / 32];
  pdl_begin();
  const int head = blockIdx.x, key_head = head / (p.value_heads / p.key_heads);
  const SpanInfo span = p.batch.spans[blockIdx.y];
  const int size = p.key_dim * p.value_dim, col = threadIdx.x;
  float* q = shared + size;
  float* k = q + p.key_dim;
  float* state = p.state + (static_cast<size_t>(span.slot) * p.value_heads + head) * size;
  const bool fresh = p.batch.positions[span.row] == 0, active = col < p.value_dim;
  for (int i = threadIdx.x; i < size; i += kThreads) shared[i] = fresh ? 0.f : state[i];

  for (int i = 0; i < span.count; i++) {
    const size_t row = span.row + i;
    const bf16* conv = p.conv + row * p.conv_rows;
    for (int j = threadIdx.x; j < p.key_dim; j += kThreads) {
      q[j] = to_float(conv[key_head * p.key_dim + j]);
      k[j] = to_float(conv[(p.key_heads + key_head) * p.key_dim + j]);
    }
    __syncthreads();
    const bf16* z = p.in + row * p.width + p.conv_rows;
    const bf16* ba = z + p.value_heads * p.value_dim + head;
    float o = 0;
    if (active) {
      const float beta = sigmoid(to_float(ba[0]));
      const float decay =
          expf(p.neg_exp_a[head] * softplus(to_float(ba[p.value_heads]) + p.dt_bias[head]));
      const float v = to_float(conv[2 * p.key_heads * p.key_dim + head * p.value_dim + col]);
      float read = 0;
      for (int j = 0; j < p.key_dim; j++) read = fmaf(shared[j * p.value_dim + col], k[j], read);
      const float d = beta * (v - decay * read);
      for (int j = 0; j < p.key_dim; j++) {
        float& cell = shared[j * p.value_dim + col];
        cell = fmaf(k[j], d, decay * cell);
        o = fmaf(cell, q[j], o);
      }
    }
    const float square = block_sum<kThreads>(o * o, reduce);  // ends with a barrier
    if (active) {
      const float scale = rsqrtf(square / static_cast<float>(p.value_dim) + p.eps);
      p.y[(row * p.value_heads + head) * p.value_dim + col] =
          to_bf16(o * scale * p.norm[col] * silu(to_float(z[head * p.value_dim + col])));
    }
  }
  for (int i = threadIdx.x; i < size; i += kThreads) state[i] = shared[i];
}

}  // namespace

void delta_rows(const DeltaCall& call, const DeltaScratch& scratch) {
  const DeltaNetSpec& s = *call.spec;
  const size_t bytes = static_cast<size_t>(s.key_dim * s.value_dim + 2 * s.key_dim) * sizeof(float);
  if (bytes > kMostShared || s.value_dim > kThreads) {
    throw UsageError("unsupported_model", "delta net heads of " + std::to_string(s.key_dim) +
                                              " x " + std::to_string(s.value_dim) +
                                              " are not supported on the GPU; up to 200 x 256 are");
  }
  static const bool ready = (allow_shared(rows_kernel, kMostShared), true);
  (void)ready;
  const Problem p{static_cast<const bf16*>(call.in),
                  static_cast<const bf16*>(scratch.conv),
                  static_cast<bf16*>(call.y),
                  call.state.recurrent,
                  call.batch,
                  s.neg_exp_a,
                  s.dt_bias,
                  s.out_norm.weight,
                  s.out_norm.eps,
                  static_cast<int>(s.key_heads),
                  static_cast<int>(s.value_heads),
                  static_cast<int>(s.key_dim),
                  static_cast<int>(s.value_dim),
                  static_cast<int>(s.conv_rows()),
                  call.width()};
  launch(rows_kernel, dim3(p.value_heads, call.batch.span_count), kThreads, bytes, call.stream, p);
}

}  // namespace cbench::cuda
