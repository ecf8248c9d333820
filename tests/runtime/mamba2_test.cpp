// The CPU's Mamba 2 against its recurrence in double precision.
#include <limits>

#include <gtest/gtest.h>

#include "runtime/ops_support.h"

namespace cbench::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Shape {
  int64_t heads, head_dim, groups, state, conv;
  bool bias;
  float dt_min, dt_max;
};

/// A layer with random parameters.
struct Mamba {
  Mamba2Spec spec;
  std::vector<float> taps, bias, decay, dt_bias, d, weight;

  explicit Mamba(const Shape& shape) {
    spec.heads = shape.heads;
    spec.head_dim = shape.head_dim;
    spec.groups = shape.groups;
    spec.state = shape.state;
    spec.conv = shape.conv;
    spec.dt_min = shape.dt_min;
    spec.dt_max = shape.dt_max;
    const auto heads = static_cast<size_t>(shape.heads);
    const auto channels = static_cast<size_t>(spec.conv_rows());
    taps = random_floats(channels * static_cast<size_t>(shape.conv), 1);
    bias = random_floats(channels, 2);
    decay = random_floats(heads, 3);
    for (float& value : decay) value = -std::exp(value);
    dt_bias = random_floats(heads, 4, 2);
    d = random_floats(heads, 5);
    weight = random_floats(static_cast<size_t>(spec.inner()), 6);
    spec.conv_weight = taps.data();
    if (shape.bias) spec.conv_bias = bias.data();
    spec.neg_exp_a = decay.data();
    spec.dt_bias = dt_bias.data();
    spec.d = d.data();
    spec.out_norm = {weight.data(), 1e-5f};
  }
  int64_t row_width() const { return spec.inner() + spec.conv_rows() + spec.heads; }
  std::vector<float> inputs(int64_t rows) const {
    return random_floats(static_cast<size_t>(rows * row_width()), 9);
  }
};

/// The convolution and SiLU of row t.
Doubles convolved(const Mamba2Spec& spec, const float* in, int64_t stride, int64_t t) {
  Doubles out;
  for (int64_t c = 0; c < spec.conv_rows(); ++c) {
    double sum = spec.conv_bias ? spec.conv_bias[c] : 0;
    for (int64_t j = 0; j < spec.conv; ++j) {
      const int64_t from = t - spec.conv + 1 + j;
      if (from < 0) continue;
      sum += double{spec.conv_weight[c * spec.conv + j]} * in[from * stride + spec.inner() + c];
    }
    out.push_back(sum * sigmoid(sum));
  }
  return out;
}

/// One sequence's output by the recurrence.
Doubles reference(const Mamba& mamba, const float* in, int64_t count) {
  const Mamba2Spec& spec = mamba.spec;
  const int64_t n = spec.state, width = spec.head_dim, inner = spec.inner();
  Doubles state(static_cast<size_t>(inner * n)), out;
  for (int64_t t = 0; t < count; ++t) {
    const float* row = in + t * mamba.row_width();
    const Doubles xbc = convolved(spec, in, mamba.row_width(), t);
    Doubles y;
    for (int64_t h = 0; h < spec.heads; ++h) {
      const double raw = row[inner + spec.conv_rows() + h] + double{spec.dt_bias[h]};
      const double dt = std::clamp<double>(std::log1p(std::exp(raw)), spec.dt_min, spec.dt_max);
      const double* b = xbc.data() + inner + h / (spec.heads / spec.groups) * n;
      const double* c = b + spec.groups * n;
      for (int64_t p = 0; p < width; ++p) {
        const double x = xbc[static_cast<size_t>(h * width + p)];
        double sum = spec.d[h] * x;
        for (int64_t i = 0; i < n; ++i) {
          double& s = state[static_cast<size_t>((h * width + p) * n + i)];
          s = std::exp(dt * spec.neg_exp_a[h]) * s + dt * x * b[i];
          sum += s * c[i];
        }
        const double z = row[h * width + p];
        y.push_back(sum * z * sigmoid(z));
      }
    }
    const int64_t group = inner / spec.groups;
    for (int64_t i = 0; i < inner; ++i) {
      double squares = 0;
      for (int64_t j = i / group * group; j < (i / group + 1) * group; ++j) {
        squares += y[static_cast<size_t>(j)] * y[static_cast<size_t>(j)];
      }
      out.push_back(y[static_cast<size_t>(i)] * spec.out_norm.weight[i] /
                    std::sqrt(squares / static_cast<double>(group) + spec.out_norm.eps));
    }
  }
  return out;
}

/// The op with its states; a slot holds NaN until a sequence starts in it.
struct Runner {
  const Mamba& mamba;
  std::unique_ptr<Ops> ops = make_cpu_ops();
  std::vector<float> conv, recurrent;

  Runner(const Mamba& the_mamba, int64_t tokens, int64_t slots) : mamba(the_mamba) {
    const Mamba2Spec& spec = mamba.spec;
    ops->reserve({.tokens = tokens,
                  .sequences = slots,
                  .slots = slots,
                  .max_length = tokens,
                  .logits_rows = 1},
                 {.mamba2 = {spec}});
    conv.assign(static_cast<size_t>(slots * spec.conv_rows() * (spec.conv - 1)), NAN);
    recurrent.assign(static_cast<size_t>(slots * spec.inner() * spec.state), NAN);
  }
  void run(const Layer& layer, const float* in, float* y) {
    ops->upload(layer.batch());
    ops->mamba2(mamba.spec, {conv.data(), recurrent.data()}, in, y);
  }
};

TEST(CpuMamba2, EqualsTheRecurrence) {
  for (const Shape& shape :
       {Shape{1, 1, 1, 1, 4, true, 0, kInfinity}, Shape{4, 8, 2, 16, 4, true, 0, kInfinity},
        Shape{6, 5, 3, 7, 3, false, 0.05f, 0.3f}, Shape{4, 64, 1, 128, 4, true, 0, kInfinity},
        Shape{2, 20, 2, 40, 2, true, 0, 0.1f}, Shape{3, 70, 1, 33, 1, false, 0, kInfinity}}) {
    const Mamba mamba(shape);
    constexpr int64_t kTotal = 150;
    const auto in = mamba.inputs(kTotal);
    const Doubles expected = reference(mamba, in.data(), kTotal);
    for (const int32_t cut : {1, 2, 3, 8, 63, 64, 65, 128, 149}) {
      Runner runner(mamba, kTotal, 1);
      std::vector<float> y(expected.size(), NAN);
      for (const auto& [start, count] :
           {std::pair<int32_t, int32_t>{0, cut}, {cut, kTotal - cut}}) {
        runner.run(layer_of({{start, count}}), in.data() + start * mamba.row_width(),
                   y.data() + start * mamba.spec.inner());
      }
      EXPECT_LT(error_of(y, expected), 5e-6)
          << "cut " << cut << ", " << shape.heads << " heads of " << shape.head_dim;
    }
  }
}

TEST(CpuMamba2, StepsEqualAPrefill) {
  const Mamba mamba({4, 16, 2, 32, 4, true, 0, kInfinity});
  constexpr int32_t kTotal = 20;
  const auto in = mamba.inputs(kTotal);
  const Doubles expected = reference(mamba, in.data(), kTotal);
  Runner runner(mamba, kTotal, 1);
  std::vector<float> y(expected.size(), NAN);
  for (int32_t t = 0; t < kTotal; ++t) {
    runner.run(layer_of({{t, 1}}), in.data() + t * mamba.row_width(),
               y.data() + t * mamba.spec.inner());
  }
  EXPECT_LT(error_of(y, expected), 5e-6);
}

TEST(CpuMamba2, PackedSequencesDoNotMeet) {
  const Mamba mamba({4, 16, 2, 32, 4, true, 0, kInfinity});
  const auto width = static_cast<size_t>(mamba.row_width());
  const auto inner = static_cast<size_t>(mamba.spec.inner());
  // Slot 0 continues after 10 rows, slot 1 starts anew over an old sequence, slot 2 is fresh.
  const auto in = mamba.inputs(10 + 70 + 5 + 1);
  const std::span<const float> rows(in);
  Runner runner(mamba, 200, 3);
  std::vector<float> y(86 * inner), first(10 * inner);
  runner.run(layer_of({{0, 10}}), in.data(), first.data());
  runner.run(layer_of({{0, 10}, {0, 70}, {0, 5}}), in.data(), y.data());
  runner.run(layer_of({{10, 70}, {0, 5}, {0, 1}}), in.data() + 10 * width, y.data() + 10 * inner);
  std::copy(first.begin(), first.end(), y.begin());

  size_t row = 0;
  for (const size_t count : {80u, 5u, 1u}) {
    const auto expected =
        reference(mamba, rows.subspan(row * width).data(), static_cast<int64_t>(count));
    EXPECT_LT(error_of(std::span(y).subspan(row * inner, count * inner), expected), 5e-6) << row;
    row += count;
  }
}

}  // namespace
}  // namespace cbench::testing
