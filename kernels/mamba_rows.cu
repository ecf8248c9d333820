// Mamba 2 row by row, for head shapes that the tensor core kernel does not take. One block per span
// and head; the state lives in shared memory, all fp32.
#include <string>

#include "mamba.cuh"
#include "util/error.h"

namespace cbench::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr size_t kMostShared = size_t{200} << 10;

__global__ void __launch_bounds__(kThreads) rows_kernel(const __grid_constant__ MambaProblem p) {
  extern __shared__ float h[];  // [head_dim][states]
  pdl_begin();
  const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const SpanInfo span = p.batch.spans[blockIdx.y];
  const int size = p.head_dim * p.states;
  float* state = p.state + (static_cast<size_t>(span.slot) * p.heads + head) * size;
  const bool fresh = p.batch.positions[span.row] == 0;
  for (int i = threadIdx.x; i < size; i += kThreads) h[i] = fresh ? 0.f : state[i];
  __syncthreads();
  for (int i = 0; i < span.count; i++) {
    const size_t row = span.row + i;
    const bf16* conv = p.conv + row * p.conv_rows;
    const bf16* b = conv + p.b_column(head);
    const bf16* c = conv + p.c_column(head);
    const float dt = p.time_step(row, head), decay = expf(dt * p.neg_exp_a[head]);
    for (int d = warp; d < p.head_dim; d += kWarps) {  // a warp owns its columns throughout
      const float x = to_float(conv[head * p.head_dim + d]);
      float dot = 0;
      for (int n = lane; n < p.states; n += 32) {
        float& cell = h[d * p.states + n];
        cell = fmaf(dt * x, to_float(b[n]), decay * cell);
        dot = fmaf(cell, to_float(c[n]), dot);
      }
      dot = warp_sum(dot);
      if (lane == 0)
        static_cast<float*>(p.readout)[row * p.inner + head * p.head_dim + d] =
            fmaf(p.d[head], x, dot);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < size; i += kThreads) state[i] = h[i];
}

}  // namespace

void mamba_rows(const MambaCall& call, const MambaScratch& scratch) {
  const Mamba2Spec& s = *call.spec;
  const size_t bytes = static_cast<size_t>(s.head_dim * s.state) * sizeof(float);
  if (bytes > kMostShared) {
    throw UsageError("unsupported_model", "Mamba 2 heads of " + std::to_string(s.head_dim) + " x " +
                                              std::to_string(s.state) +
                                              " are not supported on the GPU; up to 200 x 256 are");
  }
  static const bool ready = (allow_shared(rows_kernel, kMostShared), true);
  (void)ready;
  const MambaProblem p = mamba_problem(call, scratch);
  launch(rows_kernel, dim3(p.heads, call.batch.span_count), kThreads, bytes, call.stream, p);
}

}  // namespace cbench::cuda
