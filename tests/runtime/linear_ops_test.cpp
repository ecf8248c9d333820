// The CPU's matrix products and row-wise ops against naive references, over odd shapes.
#include <gtest/gtest.h>

#include "runtime/fake_plugin.h"
#include "runtime/ops_support.h"

namespace cbench::testing {
namespace {

TEST(CpuLinear, PluginsEqualPlainMatrices) {
  constexpr int64_t kRows = 70, kCols = 40;
  for (const int64_t tokens : {1, 5, 40}) {
    for (int flags = 0; flags < 8; ++flags) {
      FakePlugin plugin(
          kRows, kCols,
          {.matmul = (flags & 1) != 0, .transform = (flags & 2) != 0, .embed = (flags & 4) != 0});
      plugin.limit = flags & 4 ? 8 : 100;
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
      EXPECT_EQ(plugin.products > 0, (flags & 1) && tokens <= plugin.limit);
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

// --- rows
// -----------------------------------------------------------------------------------------

std::unique_ptr<Ops> ops_for(int64_t tokens, std::vector<const Linear*> matrices) {
  auto ops = make_cpu_ops();
  ops->reserve(
      {.tokens = tokens, .sequences = 1, .slots = 1, .max_length = 1, .logits_rows = tokens},
      {.matrices = std::move(matrices)});
  return ops;
}

TEST(CpuRows, GateUpActivates) {
  constexpr int64_t kInner = 23, kCols = 40;
  for (const Activation activation :
       {Activation::kSilu, Activation::kGeluTanh, Activation::kRelu2}) {
    const int64_t rows = is_gated(activation) ? 2 * kInner : kInner;
    const auto weights = random_bf16(static_cast<size_t>(rows * kCols), 1);
    const Linear w{.rows = rows, .cols = kCols, .bf16 = weights.data()};
    for (const int64_t tokens : {1, 5, 40}) {
      const auto x = random_floats(static_cast<size_t>(tokens * kCols), 2, 3);
      auto ops = ops_for(tokens, {&w});
      std::vector<float> product(static_cast<size_t>(tokens * rows));
      std::vector<float> y(static_cast<size_t>(tokens * kInner), NAN);
      ops->project(x.data(), nullptr, tokens, {{w}}, product.data());
      ops->gate_up(x.data(), nullptr, tokens, {{w}}, activation, y.data());
      Doubles expected;
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t i = 0; i < kInner; ++i) {
          const double gate = product[static_cast<size_t>(t * rows + i)];
          if (activation == Activation::kRelu2) {
            expected.push_back(gate > 0 ? gate * gate : 0);
            continue;
          }
          const double up = product[static_cast<size_t>(t * rows + kInner + i)];
          expected.push_back(
              up * (activation == Activation::kSilu ? gate * sigmoid(gate) : gelu_tanh(gate)));
        }
      }
      EXPECT_LT(error_of(y, expected), 2e-6) << tokens;
    }
  }
}

TEST(CpuRows, EmbedScales) {
  constexpr int64_t kCols = 19;
  const auto weights = random_bf16(5 * kCols, 1);
  const Linear table{.rows = 5, .cols = kCols, .bf16 = weights.data()};
  auto ops = ops_for(3, {&table});
  const std::vector<int32_t> ids = {4, 0, 4};
  const Span span{0, 0, 0, 3};
  ops->upload({ids, {&span, 1}});
  std::vector<float> y(3 * kCols, NAN);
  ops->embed(table, 3.25f, y.data());
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t row = static_cast<size_t>(ids[i / kCols]);
    EXPECT_EQ(y[i], 3.25f * from_bf16(weights[row * kCols + i % kCols])) << i;
  }
}

TEST(CpuRows, HeadCapsItsLogits) {
  constexpr int64_t kVocab = 301, kCols = 16;
  const auto weights = random_floats(kVocab * kCols, 1, 40);
  const Linear head{.rows = kVocab, .cols = kCols, .f32 = weights.data()};
  const auto x = random_floats(2 * kCols, 2), norm = random_floats(kCols, 3);
  auto ops = ops_for(2, {&head});
  std::vector<float> plain(2 * kVocab), capped(2 * kVocab);
  ops->lm_head(x.data(), {norm.data(), 1e-6f}, 2, head, 0, plain.data());
  ops->lm_head(x.data(), {norm.data(), 1e-6f}, 2, head, 30, capped.data());
  Doubles expected;
  for (const float value : plain) expected.push_back(30 * std::tanh(double{value} / 30));
  EXPECT_LT(error_of(capped, expected), 3e-7);
  EXPECT_GT(relative_error(capped, plain), 0.1) << "the logits are too small to be capped";
}

TEST(CpuRows, AddNormed) {
  for (const int64_t width : {1, 17, 64}) {
    const auto y = random_floats(static_cast<size_t>(37 * width), 1);
    const auto start = random_floats(static_cast<size_t>(37 * width), 2);
    const auto weight = random_floats(static_cast<size_t>(width), 3);
    const Norm norm{weight.data(), 0.01f};
    for (const bool normed : {false, true}) {
      for (const float scale : {1.0f, 0.25f}) {
        auto residual = start;
        make_cpu_ops()->add_normed(y.data(), normed ? &norm : nullptr, 37, width, scale,
                                   residual.data());
        Doubles expected;
        for (size_t i = 0; i < y.size(); ++i) {
          const size_t column = i % static_cast<size_t>(width), first = i - column;
          double squares = 0;
          for (size_t c = 0; c < static_cast<size_t>(width); ++c) {
            squares += double{y[first + c]} * y[first + c];
          }
          const double factor =
              normed ? weight[column] / std::sqrt(squares / static_cast<double>(width) + 0.01) : 1;
          expected.push_back((start[i] + y[i] * factor) * scale);
        }
        EXPECT_LT(error_of(residual, expected), 1e-6) << width << normed << scale;
      }
    }
  }
}

TEST(CpuRows, AddGated) {
  for (const int64_t width : {1, 17, 64}) {
    const auto y = random_floats(static_cast<size_t>(37 * width), 1);
    const auto x = random_floats(static_cast<size_t>(37 * width), 2);
    const auto start = random_floats(static_cast<size_t>(37 * width), 3);
    const auto gate = random_floats(static_cast<size_t>(width), 4);
    auto residual = start;
    make_cpu_ops()->add_gated(y.data(), x.data(), gate.data(), 37, width, residual.data());
    Doubles expected;
    for (size_t i = 0; i < y.size(); ++i) {
      const size_t column = i % static_cast<size_t>(width), first = i - column;
      double logit = 0;
      for (size_t c = 0; c < static_cast<size_t>(width); ++c)
        logit += double{gate[c]} * x[first + c];
      expected.push_back(start[i] + sigmoid(logit) * y[i]);
    }
    EXPECT_LT(error_of(residual, expected), 1e-6) << width;
  }
}

}  // namespace
}  // namespace cbench::testing
