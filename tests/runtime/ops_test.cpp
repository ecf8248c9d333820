// The CPU's kernels and ops against naive references in double precision, over odd shapes.
#include <bit>
#include <cstring>

#include <gtest/gtest.h>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/linear.h"
#include "runtime/plugin_matrix.h"
#include "runtime/support.h"
#include "util/random.h"

namespace cbench::testing {
namespace {

using Doubles = std::vector<double>;

std::vector<float> random_floats(size_t count, uint64_t seed, double scale = 1) {
  Random random(seed);
  std::vector<float> out(count);
  for (float& value : out) value = static_cast<float>(scale * (2 * random.uniform() - 1));
  return out;
}
std::vector<uint16_t> random_bf16(size_t count, uint64_t seed) {
  std::vector<uint16_t> out;
  for (const float value : random_floats(count, seed)) out.push_back(to_bf16(value));
  return out;
}
float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double error_of(std::span<const float> got, const Doubles& expected) {
  return relative_error(got, std::vector<float>(expected.begin(), expected.end()));
}

/// Every instruction set that this machine runs.
class CpuKernels : public ::testing::TestWithParam<size_t> {
 protected:
  const cpu::Kernels& k() { return *cpu::runnable_kernels()[GetParam()]; }
};

TEST_P(CpuKernels, ExpAndGates) {
  std::vector<float> x;
  for (int i = -8700; i <= 8800; ++i) x.push_back(static_cast<float>(i) * 0.01f);
  std::vector<float> y(x.size());
  k().exp(x.data(), static_cast<int64_t>(x.size()), y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(y[i] / std::exp(double{x[i]}), 1, 3e-7) << x[i];
  }
  const auto gate = random_floats(77, 1, 20), up = random_floats(77, 2);
  std::vector<float> out(77);
  k().silu_mul(gate.data(), up.data(), 77, out.data());
  for (size_t i = 0; i < 77; ++i) {
    EXPECT_NEAR(out[i], gate[i] * sigmoid(gate[i]) * up[i], 2e-6);
  }
  const float special[] = {NAN, INFINITY, -INFINITY, 0.0f};
  float result[4];
  k().exp(special, 4, result);
  EXPECT_TRUE(std::isnan(result[0]));
  EXPECT_GT(result[1], 1e38f);
  EXPECT_LT(result[2], 2e-38f);
  EXPECT_EQ(result[3], 1.0f);
}

TEST_P(CpuKernels, Norms) {
  for (const int64_t width : {1, 7, 16, 33, 256}) {
    const auto x = random_floats(static_cast<size_t>(width), 3);
    const auto weight = random_floats(static_cast<size_t>(width), 4);
    const auto z = random_floats(static_cast<size_t>(width), 5);
    double squares = 0;
    for (const float value : x) squares += double{value} * value;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-6);
    Doubles plain, gated, unit;
    for (size_t i = 0; i < x.size(); ++i) {
      plain.push_back(x[i] * scale * weight[i]);
      gated.push_back(plain.back() * z[i] * sigmoid(z[i]));
      unit.push_back(x[i] * 0.5 / std::sqrt(squares + 1e-6));
    }
    std::vector<float> y(x.size());
    k().rms_norm(x.data(), weight.data(), 1e-6f, width, y.data());
    EXPECT_LT(error_of(y, plain), 1e-6);
    k().gated_norm(x.data(), weight.data(), 1e-6f, z.data(), width, y.data());
    EXPECT_LT(error_of(y, gated), 1e-6);
    y = x;
    k().l2_norm(y.data(), width, 0.5f);
    EXPECT_LT(error_of(y, unit), 1e-6);
  }
}

TEST_P(CpuKernels, Gemv) {
  for (const int64_t rows : {1, 3, 4, 9, 21}) {
    for (const int64_t cols : {1, 15, 16, 40, 257}) {
      for (const int64_t tokens : {1, 3, 4, 8}) {
        const auto w = random_bf16(static_cast<size_t>(rows * cols), 5);
        const auto x = random_floats(static_cast<size_t>(tokens * cols), 6);
        std::vector<float> wide(w.size());
        k().widen(w.data(), rows * cols, wide.data());
        Doubles expected(static_cast<size_t>(tokens * rows));
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t r = 0; r < rows; ++r) {
            double sum = 1;
            for (int64_t c = 0; c < cols; ++c) {
              const auto i = static_cast<size_t>(r * cols + c);
              ASSERT_EQ(wide[i], from_bf16(w[i]));
              sum += double{wide[i]} * x[static_cast<size_t>(t * cols + c)];
            }
            expected[static_cast<size_t>(t * rows + r)] = sum;
          }
        }
        std::vector<float> y(expected.size(), 1.0f);
        k().gemv_bf16(w.data(), rows, cols, cols, x.data(), tokens, cols, y.data(), rows, true);
        EXPECT_LT(error_of(y, expected), 2e-6) << rows << " " << cols << " " << tokens;
        y.assign(y.size(), 1.0f);
        k().gemv_f32(wide.data(), rows, cols, cols, x.data(), tokens, cols, y.data(), rows, true);
        EXPECT_LT(error_of(y, expected), 2e-6);
      }
    }
  }
}

TEST_P(CpuKernels, Matmul) {
  for (const int64_t m : {1, 4, 13, 30}) {
    for (const int64_t n : {16, 32, 48}) {
      for (const int64_t depth : {1, 31, 64}) {
        const auto a = random_floats(static_cast<size_t>(m * depth), 7);
        const auto b = random_floats(static_cast<size_t>(depth * n), 8);
        for (const bool transposed : {false, true}) {
          const int64_t a_row = transposed ? 1 : depth, a_col = transposed ? m : 1;
          Doubles expected(static_cast<size_t>(m * n), 2.0);
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t d = 0; d < depth; ++d) {
              for (int64_t j = 0; j < n; ++j) {
                expected[static_cast<size_t>(i * n + j)] +=
                    double{a[static_cast<size_t>(i * a_row + d * a_col)]} *
                    b[static_cast<size_t>(d * n + j)];
              }
            }
          }
          std::vector<float> c(expected.size(), 2.0f);
          k().matmul(m, n, depth, a.data(), a_row, a_col, b.data(), n, c.data(), n, true);
          EXPECT_LT(error_of(c, expected), 2e-6) << m << " " << n << " " << depth;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, CpuKernels,
                         ::testing::Range(size_t{0}, cpu::runnable_kernels().size()),
                         [](const auto& test) {
                           return std::string(cpu::runnable_kernels()[test.param]->name);
                         });

// --- a delta net and an attention layer by their definitions
// ----------------------------------------

struct Layer {
  std::vector<Span> spans;
  std::vector<int32_t> ids;
  int64_t rows() const { return static_cast<int64_t>(ids.size()); }
  Batch batch() const { return {ids, spans}; }
};
Layer layer_of(const std::vector<std::pair<int32_t, int32_t>>& starts_and_counts) {
  Layer layer;
  for (const auto& [start, count] : starts_and_counts) {
    layer.spans.push_back({static_cast<int32_t>(layer.spans.size()), start,
                           static_cast<int32_t>(layer.ids.size()), count});
    layer.ids.resize(layer.ids.size() + static_cast<size_t>(count));
  }
  return layer;
}

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

/// One sequence's attention output in double precision.
Doubles attention_reference(const AttentionSpec& spec, const float* qkv, int64_t count) {
  const int64_t d = spec.head_dim, q_width = d * (spec.gated ? 2 : 1);
  const int64_t stride = spec.query_heads * q_width + 2 * spec.kv_heads * d;
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
      for (int64_t s = 0; s <= t; ++s) {
        const float* key = qkv + s * stride + spec.query_heads * q_width + kv * d;
        const Doubles k = prepared(key, spec.k_norm, s);
        double score = 0;
        for (size_t i = 0; i < k.size(); ++i) score += q[i] * k[i];
        const double p = std::exp(score * spec.scale);
        total += p;
        for (int64_t i = 0; i < d; ++i) {
          o[static_cast<size_t>(i)] += p * key[spec.kv_heads * d + i];
        }
      }
      for (int64_t i = 0; i < d; ++i) {
        out.push_back(o[static_cast<size_t>(i)] / total * (spec.gated ? sigmoid(row[d + i]) : 1));
      }
    }
  }
  return out;
}

TEST(CpuAttention, EqualsTheDefinition) {
  struct Shape {
    int64_t query_heads, kv_heads, head_dim, rotary;
    bool gated, normed;
  };
  for (const Shape& shape : {Shape{4, 2, 32, 8, true, true}, Shape{3, 3, 8, 8, false, false},
                             Shape{4, 1, 20, 10, true, false}, Shape{2, 1, 48, 0, false, true}}) {
    const auto weight = random_floats(static_cast<size_t>(shape.head_dim), 1);
    const auto freq = random_floats(16, 2, 0.5);
    AttentionSpec spec;
    spec.query_heads = shape.query_heads;
    spec.kv_heads = shape.kv_heads;
    spec.head_dim = shape.head_dim;
    spec.gated = shape.gated;
    if (shape.normed) spec.q_norm = spec.k_norm = {weight.data(), 1e-6f};
    spec.rope = {freq.data(), shape.rotary, 1};
    spec.scale = 0.3f;
    const int64_t width = spec.query_heads * spec.head_dim;
    const int64_t stride = width * (spec.gated ? 2 : 1) + 2 * spec.kv_heads * spec.head_dim;
    constexpr int64_t kTotal = 150;
    const auto qkv = random_floats(static_cast<size_t>(kTotal * stride), 3);
    const Doubles expected = attention_reference(spec, qkv.data(), kTotal);
    for (const int32_t cut : {1, 8, 30, 64, 65, 149}) {
      auto ops = make_cpu_ops();
      ops->reserve(
          {.tokens = kTotal, .sequences = 1, .slots = 1, .max_length = kTotal, .logits_rows = 1},
          {.attention = {spec}});
      const size_t cache_size = static_cast<size_t>(kTotal * spec.kv_heads * spec.head_dim);
      std::vector<float> k(cache_size, NAN), v(cache_size, NAN), y(expected.size());
      const KvCache cache{k.data(), v.data(), kTotal};
      for (const auto& [start, count] :
           {std::pair<int32_t, int32_t>{0, cut}, {cut, kTotal - cut}}) {
        const Layer layer = layer_of({{start, count}});
        ops->upload(layer.batch());
        ops->attention(spec, cache, qkv.data() + start * stride, y.data() + start * width);
      }
      EXPECT_LT(error_of(y, expected), 5e-6) << "cut " << cut << " width " << spec.head_dim;
    }
  }
}

// --- matrices served by a plugin
// --------------------------------------------------------------------

/// A plugin that stores BF16 rows, counts calls, and offers what the flags say.
struct FakePlugin {
  int64_t rows, cols;
  std::vector<uint16_t> weights;
  cb_plugin table{};
  int64_t matmul_limit = 0;
  int matmuls = 0;

  FakePlugin(int64_t the_rows, int64_t the_cols, bool matmul, bool transform, bool embed)
      : rows(the_rows), cols(the_cols) {
    weights = random_bf16(static_cast<size_t>(rows * cols), 11);
    table.abi = CB_ABI_VERSION;
    table.size = sizeof(table);
    table.dequantize = [](void* m, int64_t, int64_t row, int64_t count, void* out, cb_stream) {
      const auto& self = *static_cast<FakePlugin*>(m);
      // With a transform the stored rows are those of 2 W, and x_out = x / 2.
      auto* to = static_cast<uint16_t*>(out);
      for (int64_t i = 0; i < count * self.cols; ++i) {
        const float value = from_bf16(self.weights[static_cast<size_t>(row * self.cols + i)]);
        to[i] = to_bf16(self.table.transform ? 2 * value : value);
      }
      return int{CB_OK};
    };
    if (transform) {
      table.transform = [](void* m, const void* x, int64_t tokens, void* out, cb_stream) {
        const auto& self = *static_cast<FakePlugin*>(m);
        for (int64_t i = 0; i < tokens * self.cols; ++i) {
          static_cast<float*>(out)[i] = static_cast<const float*>(x)[i] / 2;
        }
        return int{CB_OK};
      };
    }
    if (matmul) {
      table.workspace = [](void*, int64_t tokens) { return static_cast<size_t>(tokens); };
      table.matmul = [](void* m, const void* x, int64_t tokens, void* y, int64_t stride, void* work,
                        cb_stream) {
        auto& self = *static_cast<FakePlugin*>(m);
        if (tokens > self.matmul_limit) return int{CB_UNSUPPORTED};
        ++self.matmuls;
        std::memset(work, 1, static_cast<size_t>(tokens));
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t r = 0; r < self.rows; ++r) {
            double sum = 0;
            for (int64_t c = 0; c < self.cols; ++c) {
              sum += double{from_bf16(self.weights[static_cast<size_t>(r * self.cols + c)])} *
                     static_cast<const float*>(x)[t * self.cols + c];
            }
            static_cast<float*>(y)[t * stride + r] = static_cast<float>(sum);
          }
        }
        return int{CB_OK};
      };
    }
    if (embed) {
      table.embed = [](void* m, const int32_t* ids, int64_t n, void* y, cb_stream) {
        const auto& self = *static_cast<FakePlugin*>(m);
        for (int64_t i = 0; i < n * self.cols; ++i) {
          static_cast<float*>(y)[i] = from_bf16(
              self.weights[static_cast<size_t>(ids[i / self.cols] * self.cols + i % self.cols)]);
        }
        return int{CB_OK};
      };
    }
  }
};

TEST(CpuLinear, PluginsEqualPlainMatrices) {
  constexpr int64_t kRows = 70, kCols = 40;
  for (const int64_t tokens : {1, 5, 40}) {
    for (int flags = 0; flags < 8; ++flags) {
      FakePlugin plugin(kRows, kCols, flags & 1, flags & 2, flags & 4);
      plugin.matmul_limit = flags & 4 ? 8 : 100;
      const PluginMatrix matrix(plugin.table, &plugin, "w", kRows, kCols);
      Linear served{.rows = kRows, .cols = kCols, .plugin = &matrix};
      Linear plain{.rows = kRows, .cols = kCols, .bf16 = plugin.weights.data()};
      auto ops = make_cpu_ops();
      const Linear* matrices[] = {&served, &plain};
      ops->reserve(
          {.tokens = tokens, .sequences = 1, .slots = 1, .max_length = 1, .logits_rows = 1},
          {.matrices = {std::begin(matrices), std::end(matrices)}});
      const auto x = random_floats(static_cast<size_t>(tokens * kCols), 12);
      std::vector<float> a(static_cast<size_t>(tokens * kRows), 1), b = a;
      ops->project(x.data(), nullptr, tokens, {{served}}, a.data());
      ops->project(x.data(), nullptr, tokens, {{plain}}, b.data());
      EXPECT_LT(relative_error(a, b), 2e-6) << tokens << " " << flags;
      ops->project_add(x.data(), tokens, served, a.data());
      ops->project_add(x.data(), tokens, plain, b.data());
      EXPECT_LT(relative_error(a, b), 2e-6) << tokens << " " << flags;
      a.resize(static_cast<size_t>(tokens * kRows / 2));
      b = a;
      ops->gate_up(x.data(), nullptr, tokens, {{served}}, Activation::kSilu, a.data());
      ops->gate_up(x.data(), nullptr, tokens, {{plain}}, Activation::kSilu, b.data());
      EXPECT_LT(relative_error(a, b), 2e-6) << tokens << " " << flags;
      EXPECT_EQ(plugin.matmuls > 0, (flags & 1) && tokens <= plugin.matmul_limit);
      if ((flags & 2) && !(flags & 4)) continue;  // transformed rows are no embeddings
      std::vector<int32_t> ids;
      for (int64_t t = 0; t < tokens; ++t) ids.push_back(static_cast<int32_t>(69 - t));
      const Span span{0, 0, 0, static_cast<int32_t>(tokens)};
      ops->upload({ids, {&span, 1}});
      a.resize(x.size());
      b.resize(x.size());
      ops->embed(served, 1, a.data());
      ops->embed(plain, 1, b.data());
      EXPECT_EQ(a, b);
    }
  }
}

TEST(CpuLinear, FactoredMatrices) {
  constexpr int64_t kRows = 30, kRank = 6, kCols = 50;
  const auto a = random_bf16(kRows * kRank, 1), b = random_bf16(kRank * kCols, 2);
  Linear w{.rows = kRows, .cols = kRank, .bf16 = a.data()};
  w.low_rank_b =
      std::make_shared<const Linear>(Linear{.rows = kRank, .cols = kCols, .bf16 = b.data()});
  std::vector<float> product(kRows * kCols);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kCols; ++c) {
      float& sum = product[static_cast<size_t>(r * kCols + c)];
      for (int64_t i = 0; i < kRank; ++i) {
        sum += from_bf16(a[static_cast<size_t>(r * kRank + i)]) *
               from_bf16(b[static_cast<size_t>(i * kCols + c)]);
      }
    }
  }
  const Linear full{.rows = kRows, .cols = kCols, .f32 = product.data()};
  for (const int64_t tokens : {1, 20}) {
    auto ops = make_cpu_ops();
    const Linear* matrices[] = {&w, &full};
    ops->reserve({.tokens = tokens, .sequences = 1, .slots = 1, .max_length = 1, .logits_rows = 1},
                 {.matrices = {std::begin(matrices), std::end(matrices)}});
    const auto x = random_floats(static_cast<size_t>(tokens * kCols), 3);
    std::vector<float> y(static_cast<size_t>(tokens * kRows)), z = y;
    ops->project(x.data(), nullptr, tokens, {{w}}, y.data());
    ops->project(x.data(), nullptr, tokens, {{full}}, z.data());
    EXPECT_LT(relative_error(y, z), 2e-6);
    ops->gate_up(x.data(), nullptr, tokens, {{w}}, Activation::kSilu, y.data());
    ops->gate_up(x.data(), nullptr, tokens, {{full}}, Activation::kSilu, z.data());
    EXPECT_LT(relative_error(std::span(y).first(y.size() / 2), std::span(z).first(z.size() / 2)),
              2e-6);
  }
}

}  // namespace
}  // namespace cbench::testing
