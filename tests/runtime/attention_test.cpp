// The CPU's attention against its definition in double precision.
#include <gtest/gtest.h>

#include "runtime/ops_support.h"

namespace cbench::testing {
namespace {

/// One sequence's attention output in double precision.
Doubles attention_reference(const AttentionSpec& spec, const float* qkv, int64_t count) {
  const int64_t d = spec.head_dim, q_width = d * (spec.gated ? 2 : 1);
  const int64_t stride = spec.query_heads * q_width + (spec.k_is_v ? 1 : 2) * spec.kv_heads * d;
  const auto value_of = [&](const float* key) {
    const float* from = spec.k_is_v ? key : key + spec.kv_heads * d;
    Doubles out(from, from + d);
    double squares = 0;
    for (const double value : out) squares += value * value;
    if (spec.v_norm_eps > 0) {
      for (double& value : out) {
        value /= std::sqrt(squares / static_cast<double>(d) + spec.v_norm_eps);
      }
    }
    return out;
  };
  const auto prepared = [&](const float* x, const Norm& norm, int64_t t) {
    Doubles out(x, x + d);
    if (norm.weight) {
      double squares = 0;
      for (const double value : out) squares += value * value;
      for (int64_t i = 0; i < d; ++i) {
        out[static_cast<size_t>(i)] *=
            norm.weight[i] / std::sqrt(squares / static_cast<double>(d) + norm.eps);
      }
    }
    const int64_t half = spec.rope.rotary / 2;
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) * spec.rope.inv_freq[i];
      const double first = out[static_cast<size_t>(i)], second = out[static_cast<size_t>(i + half)];
      out[static_cast<size_t>(i)] = first * std::cos(angle) - second * std::sin(angle);
      out[static_cast<size_t>(i + half)] = second * std::cos(angle) + first * std::sin(angle);
    }
    return out;
  };
  Doubles out;
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t h = 0; h < spec.query_heads; ++h) {
      const int64_t kv = h / (spec.query_heads / spec.kv_heads);
      const float* row = qkv + t * stride + h * q_width;
      const Doubles q = prepared(row, spec.q_norm, t);
      Doubles o(static_cast<size_t>(d));
      double total = 0;
      for (int64_t s = spec.window > 0 ? std::max<int64_t>(0, t - spec.window + 1) : 0; s <= t;
           ++s) {
        const float* key = qkv + s * stride + spec.query_heads * q_width + kv * d;
        const Doubles k = prepared(key, spec.k_norm, s);
        double score = 0;
        for (size_t i = 0; i < k.size(); ++i) score += q[i] * k[i];
        const double p = std::exp(score * spec.scale);
        total += p;
        const Doubles v = value_of(key);
        for (size_t i = 0; i < v.size(); ++i) o[i] += p * v[i];
      }
      for (int64_t i = 0; i < d; ++i) {
        out.push_back(o[static_cast<size_t>(i)] / total * (spec.gated ? sigmoid(row[d + i]) : 1));
      }
    }
  }
  return out;
}

/// A layer with random norms and frequencies.
struct Layout {
  int64_t query_heads, kv_heads, head_dim, rotary;
  bool gated, normed;
  int64_t window = 0;
  float v_norm_eps = 0;
  bool k_is_v = false;
};
struct Attention {
  AttentionSpec spec;
  std::vector<float> q_weight, k_weight, freq;

  explicit Attention(const Layout& layout) {
    q_weight = random_floats(static_cast<size_t>(layout.head_dim), 1);
    k_weight = random_floats(static_cast<size_t>(layout.head_dim), 4);
    freq = random_floats(static_cast<size_t>(layout.rotary / 2 + 1), 2, 0.5);
    spec.query_heads = layout.query_heads;
    spec.kv_heads = layout.kv_heads;
    spec.head_dim = layout.head_dim;
    spec.gated = layout.gated;
    if (layout.normed) {
      spec.q_norm = {q_weight.data(), 1e-6f};
      spec.k_norm = {k_weight.data(), 1e-5f};
    }
    if (layout.rotary > 0) spec.rope = {freq.data(), layout.rotary, 1};
    spec.scale = 0.3f;
    spec.window = layout.window;
    spec.v_norm_eps = layout.v_norm_eps;
    spec.k_is_v = layout.k_is_v;
  }
  int64_t width() const { return spec.query_heads * spec.head_dim; }
  int64_t stride() const {
    return width() * (spec.gated ? 2 : 1) + (spec.k_is_v ? 1 : 2) * spec.kv_heads * spec.head_dim;
  }
};

/// The op with its cache; unwritten rows hold NaN.
struct Runner {
  const Attention& attention;
  std::unique_ptr<Ops> ops = make_cpu_ops();
  std::vector<float> k, v;
  int64_t max_length;

  Runner(const Attention& the_attention, int64_t tokens)
      : attention(the_attention), max_length(tokens) {
    const AttentionSpec& spec = attention.spec;
    ops->reserve(
        {.tokens = tokens, .sequences = 1, .slots = 1, .max_length = tokens, .logits_rows = 1},
        {.attention = {spec}});
    k.assign(static_cast<size_t>(tokens * spec.kv_heads * spec.head_dim), NAN);
    v = k;
  }
  /// Rows [start, start + count) of the sequence.
  void run(int32_t start, int32_t count, const std::vector<float>& qkv, std::vector<float>& y) {
    const Layer layer = layer_of({{start, count}});
    ops->upload(layer.batch());
    ops->attention(attention.spec, {k.data(), v.data(), max_length},
                   qkv.data() + start * attention.stride(), y.data() + start * attention.width());
  }
};

/// A sequence of `total` rows in two calls, cut at each of `cuts`.
void expect_definition(const Layout& layout, int32_t total, const std::vector<int32_t>& cuts) {
  const Attention attention(layout);
  const auto qkv = random_floats(static_cast<size_t>(total * attention.stride()), 3);
  const Doubles expected = attention_reference(attention.spec, qkv.data(), total);
  for (const int32_t cut : cuts) {
    Runner runner(attention, total);
    std::vector<float> y(expected.size(), NAN);
    runner.run(0, cut, qkv, y);
    runner.run(cut, total - cut, qkv, y);
    EXPECT_LT(error_of(y, expected), 5e-6)
        << "cut " << cut << ", width " << layout.head_dim << ", window " << layout.window;
  }
}

TEST(CpuAttention, EqualsTheDefinition) {
  for (const Layout& layout :
       {Layout{4, 2, 32, 8, true, true}, Layout{3, 3, 8, 8, false, false},
        Layout{4, 1, 20, 10, true, false}, Layout{2, 1, 48, 0, false, true}}) {
    expect_definition(layout, 150, {1, 8, 30, 64, 65, 149});
  }
}

TEST(CpuAttention, Windows) {
  for (const int64_t window : {1, 2, 7, 64, 65, 100, 149, 150, 1000}) {
    // 145: the second call is short enough for the path of steps, behind a long cache.
    expect_definition({4, 2, 24, 8, false, true, window}, 150, {1, 8, 30, 64, 145, 149});
  }
}

TEST(CpuAttention, ValuesFromKeysAndNormalized) {
  for (const bool k_is_v : {false, true}) {
    for (const float eps : {0.0f, 1e-6f, 0.5f}) {
      expect_definition({4, 2, 20, 8, true, true, 0, eps, k_is_v}, 80, {1, 70, 79});
      expect_definition({2, 2, 16, 0, false, false, 9, eps, k_is_v}, 80, {1, 70, 79});
    }
  }
}

TEST(CpuAttention, WideHeads) {
  expect_definition({8, 1, 512, 128, false, true, 0, 1e-6f, true}, 75, {1, 70});
  expect_definition({2, 2, 512, 0, false, true, 20, 1e-6f, true}, 75, {1, 70});
}

TEST(CpuAttention, StepsSeeWhatAPrefillSees) {
  const Attention attention({4, 2, 24, 8, false, true, 5});
  constexpr int32_t kTotal = 30;
  const auto qkv = random_floats(static_cast<size_t>(kTotal * attention.stride()), 3);
  Runner runner(attention, kTotal);
  std::vector<float> y(static_cast<size_t>(kTotal * attention.width()), NAN);
  for (int32_t t = 0; t < kTotal; ++t) runner.run(t, 1, qkv, y);
  EXPECT_LT(error_of(y, attention_reference(attention.spec, qkv.data(), kTotal)), 5e-6);
}

TEST(CpuAttention, LayersMayRotateDifferently) {
  const Attention local({2, 1, 16, 16, false, true, 4}), global({2, 1, 32, 8, false, true});
  constexpr int32_t kTotal = 20;
  auto ops = make_cpu_ops();
  ops->reserve(
      {.tokens = kTotal, .sequences = 1, .slots = 1, .max_length = kTotal, .logits_rows = 1},
      {.attention = {local.spec, global.spec}});
  const Layer layer = layer_of({{0, kTotal}});
  ops->upload(layer.batch());
  for (const Attention* attention : {&local, &global, &local, &global}) {
    const auto qkv = random_floats(static_cast<size_t>(kTotal * attention->stride()), 3);
    std::vector<float> k(static_cast<size_t>(kTotal * attention->spec.head_dim)), v = k;
    std::vector<float> y(static_cast<size_t>(kTotal * attention->width()));
    ops->attention(attention->spec, {k.data(), v.data(), kTotal}, qkv.data(), y.data());
    EXPECT_LT(error_of(y, attention_reference(attention->spec, qkv.data(), kTotal)), 5e-6);
  }
}

}  // namespace
}  // namespace cbench::testing
