// The gated norm of Mamba 2: readout * silu(z), RMS-normalized per group, times the norm's weight.
// One block per row and group. After a step further blocks advance the convolution state, which every
// head of the step's kernel has read by then. Also the scratch and the convolution's calls.
#include "conv.h"
#include "mamba.cuh"

namespace cbench::cuda {
namespace {

constexpr int kThreads = 256, kPieces = 8;  // columns of a group that stay in registers: 2048
constexpr int kMostTaps = 4;                // of the step's kernel

/// One channel of the convolution state moves on by one row; the old state is requested early.
__device__ void advance(const MambaProblem& p, size_t row) {
  const int channel = (blockIdx.x - p.groups) * kThreads + threadIdx.x, keep = p.taps - 1;
  if (channel >= p.conv_rows) return pdl_wait();
  const int slot = p.batch.spans[p.batch.row_span[row]].slot;
  const bool fresh = p.batch.positions[row] == 0;
  float* state = p.conv_state + (static_cast<size_t>(slot) * p.conv_rows + channel) * keep;
  float next[kMostTaps];
#pragma unroll
  for (int j = 0; j + 1 < kMostTaps; j++) next[j] = j + 1 < keep && !fresh ? state[j + 1] : 0.f;
  pdl_wait();
#pragma unroll
  for (int j = 0; j + 1 < kMostTaps; j++)
    if (j + 1 < keep) state[j] = next[j];
  state[keep - 1] = to_float(p.in[row * p.width + p.inner + channel]);
}

template <MambaReadout kReadout>
__global__ void __launch_bounds__(kThreads) norm_kernel(const __grid_constant__ MambaProblem p) {
  __shared__ float shared[kThreads / 32];
  pdl_trigger();
  const size_t row = blockIdx.y;
  if (kReadout == MambaReadout::kStep && blockIdx.x >= p.groups) return advance(p, row);
  pdl_wait();
  const int size = p.inner / p.groups, first = blockIdx.x * size;
  const auto gated = [&](int i) {
    const size_t at = row * p.inner + first + i;
    float value;
    if constexpr (kReadout == MambaReadout::kBf16) {
      value = to_float(static_cast<const bf16*>(p.readout)[at]);
    } else {
      value = static_cast<const float*>(p.readout)[at];
    }
    return value * silu(to_float(p.in[row * p.width + first + i]));
  };
  float held[kPieces], square = 0;
#pragma unroll
  for (int j = 0; j < kPieces; j++) {
    const int i = j * kThreads + threadIdx.x;
    held[j] = i < size ? gated(i) : 0.f;
    square = fmaf(held[j], held[j], square);
  }
  for (int i = kPieces * kThreads + threadIdx.x; i < size; i += kThreads) {
    const float v = gated(i);
    square = fmaf(v, v, square);
  }
  const float scale =
      rsqrtf(block_sum<kThreads>(square, shared) / static_cast<float>(size) + p.eps);
  bf16* y = p.y + row * p.inner + first;
  const auto put = [&](int i, float v) { y[i] = to_bf16(v * scale * __ldg(p.norm + first + i)); };
#pragma unroll
  for (int j = 0; j < kPieces; j++)
    if (const int i = j * kThreads + threadIdx.x; i < size) put(i, held[j]);
  for (int i = kPieces * kThreads + threadIdx.x; i < size; i += kThreads) put(i, gated(i));
}

ConvCall conv_call(const MambaCall& call, void* out) {
  const Mamba2Spec& s = *call.spec;
  ConvCall c;
  c.in = static_cast<const bf16*>(call.in) + s.inner();
  c.out = out, c.weight = s.conv_weight, c.bias = s.conv_bias;
  c.state = call.state.conv, c.batch = call.batch;
  c.channels = s.conv_rows(), c.taps = s.conv, c.width = call.width();
  return c;
}

size_t aligned(int64_t bytes) { return static_cast<size_t>((bytes + 255) / 256 * 256); }

}  // namespace

size_t mamba_scratch_bytes(const Mamba2Spec& s, int64_t tokens) {
  return aligned(tokens * s.conv_rows() * 2) + aligned(tokens * s.inner() * 4);
}

MambaScratch mamba_scratch(const Mamba2Spec& s, int64_t tokens, void* base) {
  auto* at = static_cast<unsigned char*>(base);
  return {at, at + aligned(tokens * s.conv_rows() * 2)};
}

void mamba_conv(const MambaCall& call, const MambaScratch& scratch) {
  conv(conv_call(call, scratch.conv), call.stream);
}

void mamba_conv_state(const MambaCall& call) { conv_state(conv_call(call, nullptr), call.stream); }

void mamba_norm(const MambaCall& call, const MambaScratch& scratch, MambaReadout readout) {
  MambaProblem p = mamba_problem(call, scratch);
  const auto kernel = readout == MambaReadout::kFloat  ? norm_kernel<MambaReadout::kFloat>
                      : readout == MambaReadout::kBf16 ? norm_kernel<MambaReadout::kBf16>
                                                       : norm_kernel<MambaReadout::kStep>;
  const auto extra =
      readout == MambaReadout::kStep ? static_cast<unsigned>(ceil_div(p.conv_rows, kThreads)) : 0u;
  constexpr int64_t kMost = 32768;  // rows per launch: grid.y is limited to 65535
  const auto step = [](const void* base, int64_t bytes) {
    return static_cast<const unsigned char*>(base) + bytes;
  };
  const MambaProblem whole = p;
  for (int64_t row = 0; row < call.batch.rows; row += kMost) {
    p.in = whole.in + row * p.width;
    p.y = whole.y + row * p.inner;
    p.readout = const_cast<unsigned char*>(
        step(whole.readout, row * p.inner * (readout == MambaReadout::kBf16 ? 2 : 4)));
    const auto rows = static_cast<unsigned>(std::min<int64_t>(kMost, call.batch.rows - row));
    launch(kernel, dim3(p.groups + extra, rows), kThreads, 0, call.stream, p);
  }
}

}  // namespace cbench::cuda
