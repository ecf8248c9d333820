// Causal depthwise convolution of many rows (conv.h). One warp per head and 16 rows; the taps slide
// through registers, so each row is read once. fp32 inside, BF16 out.
#include <string>

#include "conv.h"
#include "device.cuh"
#include "util/error.h"

namespace cbench::cuda {
namespace {

constexpr int kWarps = 4, kSegment = 16, kMostTaps = 8;

struct Problem {
  const bf16* in;
  bf16* out;
  const float* weight;
  const float* bias;  // or null
  const float* state;
  DeviceBatch batch;
  int key_heads, value_heads, key_dim, value_dim, conv, conv_rows;
  int64_t width;
};

/// kVector: heads of 128, 4 channels per lane side by side. Otherwise channels 32 apart, any width
/// up to 256. Taps beyond the real width have zero weight and zero history.
template <bool kVector>
struct Layout {
  static constexpr int kChannels = kVector ? 4 : 8, kTaps = kVector ? 4 : kMostTaps;
  static __device__ int channel(int i) {
    const int lane = threadIdx.x % 32;
    return kVector ? lane * 4 + i : lane + 32 * i;
  }
};

template <bool kVector>
__device__ __forceinline__ void load_row(const bf16* row, int dim, float* x) {
  if constexpr (kVector) {
    const uint2 v = *reinterpret_cast<const uint2*>(row + threadIdx.x % 32 * 4);
    x[0] = low(v.x), x[1] = high(v.x), x[2] = low(v.y), x[3] = high(v.y);
  } else {
#pragma unroll
    for (int i = 0; i < Layout<false>::kChannels; i++) {
      const int c = Layout<false>::channel(i);
      x[i] = c < dim ? to_float(row[c]) : 0.f;
    }
  }
}

template <bool kVector>
__global__ void __launch_bounds__(kWarps * 32) conv_kernel(const __grid_constant__ Problem p) {
  using L = Layout<kVector>;
  constexpr int kC = L::kChannels, kT = L::kTaps;
  pdl_begin();
  const int head = blockIdx.y * kWarps + threadIdx.x / 32;
  if (head >= 2 * p.key_heads + p.value_heads) return;
  const RowTile tile = p.batch.tiles[blockIdx.x / (kTileRows / kSegment)];
  const SpanInfo span = p.batch.spans[tile.span];
  const int first = tile.offset + blockIdx.x % (kTileRows / kSegment) * kSegment;
  const int count = min(kSegment, span.count - first);
  if (count <= 0) return;
  const bool is_key = head < 2 * p.key_heads;
  const int base = is_key ? head * p.key_dim
                          : 2 * p.key_heads * p.key_dim + (head - 2 * p.key_heads) * p.value_dim;
  const int dim = min(is_key ? p.key_dim : p.value_dim, p.conv_rows - base);
  const bool fresh = p.batch.positions[span.row] == 0;
  const float* state =
      p.state + (static_cast<size_t>(span.slot) * p.conv_rows + base) * (p.conv - 1);
  const bf16* in = p.in + static_cast<size_t>(span.row) * p.width + base;

  float weight[kC][kT], bias[kC], history[kT - 1][kC];
#pragma unroll
  for (int i = 0; i < kC; i++) {
    const int c = L::channel(i);
    bias[i] = p.bias && c < dim ? p.bias[base + c] : 0.f;
#pragma unroll
    for (int j = 0; j < kT; j++) {
      const int tap = j - (kT - p.conv);
      weight[i][j] = tap >= 0 && c < dim ? p.weight[(base + c) * p.conv + tap] : 0.f;
    }
  }
#pragma unroll
  for (int j = 0; j < kT - 1; j++) {
    const int before = kT - 1 - j, row = first - before;  // row counted from the span's first
#pragma unroll
    for (int i = 0; i < kC; i++) history[j][i] = 0;
    if (before >= p.conv) continue;
    if (row >= 0) {
      load_row<kVector>(in + row * p.width, dim, history[j]);
    } else if (!fresh) {
#pragma unroll
      for (int i = 0; i < kC; i++) {
        const int c = L::channel(i);
        if (c < dim) history[j][i] = state[c * (p.conv - 1) + p.conv - 1 + row];
      }
    }
  }

  const float scale = head < p.key_heads ? rsqrtf(static_cast<float>(p.key_dim)) : 1.f;
  constexpr int kBatch = kVector ? 4 : 1;  // rows requested together
  for (int base_row = first; base_row < first + count; base_row += kBatch) {
    float batch[kBatch][kC];
#pragma unroll
    for (int r = 0; r < kBatch; r++)
      if (base_row + r < first + count)
        load_row<kVector>(in + (base_row + r) * p.width, dim, batch[r]);
#pragma unroll
    for (int r = 0; r < kBatch; r++) {
      const int row = base_row + r;
      if (row >= first + count) break;
      const float* x = batch[r];
      float y[kC], square = 0;
#pragma unroll
      for (int i = 0; i < kC; i++) {
        y[i] = fmaf(weight[i][kT - 1], x[i], bias[i]);
#pragma unroll
        for (int j = 0; j < kT - 1; j++) y[i] = fmaf(weight[i][j], history[j][i], y[i]);
        y[i] = silu(y[i]);
        square = fmaf(y[i], y[i], square);
#pragma unroll
        for (int j = 0; j + 1 < kT - 1; j++) history[j][i] = history[j + 1][i];
        history[kT - 2][i] = x[i];
      }
      if (is_key) {
        const float norm = rsqrtf(warp_sum(square) + 1e-6f) * scale;
#pragma unroll
        for (int i = 0; i < kC; i++) y[i] *= norm;
      }
      bf16* out = p.out + static_cast<size_t>(span.row + row) * p.conv_rows + base;
      if constexpr (kVector) {
        *reinterpret_cast<uint2*>(out + L::channel(0)) = {pack(y[0], y[1]), pack(y[2], y[3])};
      } else {
#pragma unroll
        for (int i = 0; i < kC; i++)
          if (L::channel(i) < dim) out[L::channel(i)] = to_bf16(y[i]);
      }
    }
  }
}

__global__ void conv_state_kernel(const __grid_constant__ Problem p, float* state) {
  pdl_begin();
  const int c = blockIdx.x * blockDim.x + threadIdx.x, keep = p.conv - 1;
  if (c >= p.conv_rows) return;
  const SpanInfo span = p.batch.spans[blockIdx.y];
  const bool fresh = p.batch.positions[span.row] == 0;
  float* mine = state + (static_cast<size_t>(span.slot) * p.conv_rows + c) * keep;
  float next[kMostTaps - 1];
#pragma unroll
  for (int j = 0; j < kMostTaps - 1; j++) {
    if (j >= keep) break;
    const int row = span.count - keep + j;
    next[j] = row >= 0 ? to_float(p.in[static_cast<size_t>(span.row + row) * p.width + c])
              : fresh  ? 0.f
                       : mine[keep + row];
  }
#pragma unroll
  for (int j = 0; j < kMostTaps - 1; j++)
    if (j < keep) mine[j] = next[j];
}

Problem problem(const ConvCall& c) {
  if (c.taps < 2 || c.taps > kMostTaps || c.key_dim > 256 || c.value_dim > 256) {
    throw UsageError("unsupported_model",
                     "heads up to 256 wide and convolutions of 2 to 8 taps are supported on the "
                     "GPU, not heads of " +
                         std::to_string(c.key_dim) + " x " + std::to_string(c.value_dim) + " and " +
                         std::to_string(c.taps) + " taps");
  }
  return {static_cast<const bf16*>(c.in),
          static_cast<bf16*>(c.out),
          c.weight,
          c.bias,
          c.state,
          c.batch,
          static_cast<int>(c.key_heads),
          static_cast<int>(ceil_div(c.channels - 2 * c.key_heads * c.key_dim, c.value_dim)),
          static_cast<int>(c.key_dim),
          static_cast<int>(c.value_dim),
          static_cast<int>(c.taps),
          static_cast<int>(c.channels),
          c.width};
}

}  // namespace

void conv(const ConvCall& c, cudaStream_t stream) {
  const Problem p = problem(c);
  const bool vector = (c.key_heads == 0 || c.key_dim == 128) && c.value_dim == 128 && c.taps == 4 &&
                      c.channels % 128 == 0 && c.width % 4 == 0 &&
                      reinterpret_cast<uintptr_t>(p.in) % 8 == 0;
  const dim3 grid(static_cast<unsigned>(c.batch.tile_count * (kTileRows / kSegment)),
                  static_cast<unsigned>(ceil_div(2 * p.key_heads + p.value_heads, kWarps)));
  launch(vector ? conv_kernel<true> : conv_kernel<false>, grid, kWarps * 32, 0, stream, p);
}

void conv_state(const ConvCall& c, cudaStream_t stream) {
  const Problem p = problem(c);
  const dim3 grid(static_cast<unsigned>(ceil_div(p.conv_rows, 256)), c.batch.span_count);
  launch(conv_state_kernel, grid, 256, 0, stream, p, c.state);
}

}  // namespace cbench::cuda
