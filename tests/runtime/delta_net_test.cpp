// The CPU's delta net against its recurrence in double precision.
#include <gtest/gtest.h>

#include "runtime/ops_support.h"

namespace cbench::testing {
namespace {

/// One sequence's output by the recurrence in double precision.
Doubles delta_reference(const DeltaNetSpec& spec, const float* in, int64_t count) {
  const int64_t channels = spec.conv_rows(), values = spec.value_heads * spec.value_dim;
  const int64_t stride = channels + values + 2 * spec.value_heads;
  const int64_t dk = spec.key_dim, dv = spec.value_dim, ratio = spec.value_heads / spec.key_heads;
  Doubles state(static_cast<size_t>(spec.value_heads * dk * dv)), out;
  for (int64_t t = 0; t < count; ++t) {
    Doubles conv(static_cast<size_t>(channels));
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < spec.conv; ++j) {
        const int64_t from = t - spec.conv + 1 + j;
        if (from >= 0) sum += double{spec.conv_weight[c * spec.conv + j]} * in[from * stride + c];
      }
      conv[static_cast<size_t>(c)] = sum * sigmoid(sum);
    }
    for (int64_t h = 0; h < spec.value_heads; ++h) {
      const double* q = conv.data() + (h / ratio) * dk;
      const double* key = conv.data() + (spec.key_heads + h / ratio) * dk;
      const double* v = conv.data() + 2 * spec.key_heads * dk + h * dv;
      const float* row = in + t * stride + channels;
      double qq = 1e-6, kk = 1e-6;
      for (int64_t i = 0; i < dk; ++i) qq += q[i] * q[i], kk += key[i] * key[i];
      const double a = row[values + spec.value_heads + h] + double{spec.dt_bias[h]};
      const double decay = std::exp(spec.neg_exp_a[h] * std::log1p(std::exp(a)));
      const double beta = sigmoid(row[values + h]);
      double* s = state.data() + h * dk * dv;
      Doubles o(static_cast<size_t>(dv));
      double squares = 0;
      for (int64_t j = 0; j < dv; ++j) {
        double read = 0, sum = 0;
        for (int64_t i = 0; i < dk; ++i) {
          s[i * dv + j] *= decay;
          read += s[i * dv + j] * key[i] / std::sqrt(kk);
        }
        for (int64_t i = 0; i < dk; ++i) {
          s[i * dv + j] += key[i] / std::sqrt(kk) * beta * (v[j] - read);
          sum += s[i * dv + j] * q[i] / std::sqrt(qq * static_cast<double>(dk));
        }
        o[static_cast<size_t>(j)] = sum;
        squares += sum * sum;
      }
      for (int64_t j = 0; j < dv; ++j) {
        const double z = row[h * dv + j];
        out.push_back(o[static_cast<size_t>(j)] /
                      std::sqrt(squares / static_cast<double>(dv) + spec.out_norm.eps) *
                      spec.out_norm.weight[j] * z * sigmoid(z));
      }
    }
  }
  return out;
}

TEST(CpuDeltaNet, EqualsTheRecurrence) {
  struct Shape {
    int64_t key_heads, value_heads, key_dim, value_dim, conv;
  };
  for (const Shape& shape :
       {Shape{1, 1, 16, 16, 4}, Shape{2, 6, 24, 40, 4}, Shape{1, 2, 5, 7, 3}}) {
    DeltaNetSpec spec;
    spec.key_heads = shape.key_heads;
    spec.value_heads = shape.value_heads;
    spec.key_dim = shape.key_dim;
    spec.value_dim = shape.value_dim;
    spec.conv = shape.conv;
    const auto taps = random_floats(static_cast<size_t>(spec.conv_rows() * spec.conv), 1);
    auto decay = random_floats(static_cast<size_t>(spec.value_heads), 2, 0.2);
    for (float& value : decay) value = -std::exp(value);
    const auto bias = random_floats(static_cast<size_t>(spec.value_heads), 3);
    const auto weight = random_floats(static_cast<size_t>(spec.value_dim), 4);
    spec.conv_weight = taps.data();
    spec.neg_exp_a = decay.data();
    spec.dt_bias = bias.data();
    spec.out_norm = {weight.data(), 1e-6f};
    const int64_t values = spec.value_heads * spec.value_dim;
    const int64_t stride = spec.conv_rows() + values + 2 * spec.value_heads;
    constexpr int64_t kTotal = 150;
    const auto in = random_floats(static_cast<size_t>(kTotal * stride), 9);
    const Doubles expected = delta_reference(spec, in.data(), kTotal);

    for (const int32_t cut : {1, 2, 8, 63, 64, 65, 128, 149}) {
      auto ops = make_cpu_ops();
      ops->reserve(
          {.tokens = kTotal, .sequences = 1, .slots = 1, .max_length = kTotal, .logits_rows = 1},
          {.delta = {spec}});
      std::vector<float> conv(static_cast<size_t>(spec.conv_rows() * (spec.conv - 1)), NAN);
      std::vector<float> recurrent(static_cast<size_t>(values * spec.key_dim), NAN);
      const DeltaNetState state{conv.data(), recurrent.data()};
      std::vector<float> y(expected.size());
      for (const auto& [start, count] :
           {std::pair<int32_t, int32_t>{0, cut}, {cut, kTotal - cut}}) {
        const Layer layer = layer_of({{start, count}});
        ops->upload(layer.batch());
        ops->delta_net(spec, state, in.data() + start * stride, y.data() + start * values);
      }
      EXPECT_LT(error_of(y, expected), 5e-6) << "cut " << cut << " dk " << spec.key_dim;
    }
  }
}

}  // namespace
}  // namespace cbench::testing
