// Mamba 2 of the CPU backend.
#include "runtime/cpu/mamba2.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/scalar.h"
#include "runtime/cpu/threads.h"

namespace cbench::cpu {
namespace {

constexpr int64_t kColumns = 256;  // columns of a convolution task
constexpr int64_t kMaxTaps = 16;

/// The op's arguments, with the strides spelled out.
struct Context {
  const Mamba2Spec& spec;
  const Mamba2State& state;
  const CurrentBatch& batch;
  const ThreadScratch& scratch;
  float* convolved;
  const float* in;
  float* y;

  int64_t channels() const { return spec.conv_rows(); }
  int64_t row_stride() const { return spec.inner() + channels() + spec.heads; }
  const float* z(int64_t row) const { return in + row * row_stride(); }
  const float* xbc(int64_t row) const { return z(row) + spec.inner(); }
  const float* dt(int64_t row) const { return xbc(row) + channels(); }
};

/// Columns [first, first + count) of a span through the convolution, and their state.
void convolve(const Context& c, const Span& span, int64_t first, int64_t count, float* history) {
  const int64_t conv = c.spec.conv, taps = conv - 1;
  float* state = c.state.conv + (span.slot * c.channels() + first) * taps;
  for (int64_t j = 0; j < taps; ++j) {
    for (int64_t i = 0; i < count; ++i) {
      history[j * count + i] = span.start == 0 ? 0 : state[i * taps + j];
    }
  }
  const auto input = [&](int64_t t) {  // row t of the span; negative: before it
    return t >= 0 ? c.xbc(span.row + t) + first : history + (taps + t) * count;
  };
  std::array<const float*, kMaxTaps> rows{};
  const float* bias = c.spec.conv_bias ? c.spec.conv_bias + first : nullptr;
  for (int64_t t = 0; t < span.count; ++t) {
    for (int64_t j = 0; j < conv; ++j) rows[static_cast<size_t>(j)] = input(t - taps + j);
    kernels().conv_silu(rows.data(), c.spec.conv_weight + first * conv, bias, conv, count,
                        c.convolved + (span.row + t) * c.channels() + first);
  }
  for (int64_t j = 0; j < taps; ++j) {
    const float* from = input(span.count - taps + j);
    for (int64_t i = 0; i < count; ++i) state[i * taps + j] = from[i];
  }
}

float step_size(const Mamba2Spec& spec, float dt, int64_t head) {
  return std::clamp(softplus(dt + spec.dt_bias[head]), spec.dt_min, spec.dt_max);
}

/// One head of a span, token by token.
void run_head(const Context& c, const Span& span, int64_t head, float* scaled) {
  const Mamba2Spec& spec = c.spec;
  const int64_t width = spec.head_dim, group = head / (spec.heads / spec.groups);
  float* state = c.state.recurrent + (span.slot * spec.heads + head) * width * spec.state;
  if (span.start == 0) std::fill_n(state, width * spec.state, 0.0f);
  for (int64_t row = span.row; row < span.row + span.count; ++row) {
    const float* x = c.convolved + row * c.channels() + head * width;
    const float* b = c.convolved + row * c.channels() + spec.inner() + group * spec.state;
    const float* read = b + spec.groups * spec.state;
    float* y = c.y + row * spec.inner() + head * width;
    const float dt = step_size(spec, c.dt(row)[head], head);
    kernels().scale(dt, x, width, scaled);
    kernels().ssm_step(state, width, spec.state, std::exp(dt * spec.neg_exp_a[head]), scaled, b,
                       read, y);
    kernels().axpy(spec.d[head], x, width, y);
  }
}

/// y * silu(z), normalized per group.
void finish_row(const Context& c, int64_t row) {
  const int64_t inner = c.spec.inner(), width = inner / c.spec.groups;
  float* y = c.y + row * inner;
  kernels().silu_mul(c.z(row), y, inner, y);
  for (int64_t first = 0; first < inner; first += width) {
    kernels().rms_norm(y + first, c.spec.out_norm.weight + first, c.spec.out_norm.eps, width,
                       y + first);
  }
}

}  // namespace

int64_t mamba2_scratch(const Mamba2Spec& spec) {
  return std::max((spec.conv - 1) * kColumns, spec.head_dim);
}

void mamba2(const Mamba2Spec& spec, const Mamba2State& state, const CurrentBatch& batch,
            const ThreadScratch& scratch, float* convolved, const float* in, float* y) {
  const Context c{spec, state, batch, scratch, convolved, in, y};
  const auto spans = static_cast<int64_t>(batch.spans.size());
  const int64_t blocks = (c.channels() + kColumns - 1) / kColumns;
  parallel_tasks(spans * blocks, 20 * batch.rows() * c.channels(), [&](int64_t task, int thread) {
    const int64_t first = task % blocks * kColumns;
    convolve(c, batch.spans[static_cast<size_t>(task / blocks)], first,
             std::min(kColumns, c.channels() - first), scratch.of(thread));
  });
  parallel_tasks(spans * spec.heads, 6 * batch.rows() * spec.inner() * spec.state,
                 [&](int64_t task, int thread) {
                   run_head(c, batch.spans[static_cast<size_t>(task / spec.heads)],
                            task % spec.heads, scratch.of(thread));
                 });
  parallel_ranges(batch.rows(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) finish_row(c, row);
  });
}

}  // namespace cbench::cpu
