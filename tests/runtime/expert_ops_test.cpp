// The CPU's router and experts against naive references in double precision, over odd shapes.
#include <algorithm>
#include <numeric>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/fake_plugin.h"
#include "runtime/ops_support.h"
#include "util/error.h"

namespace cbench::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// --- routing
// --------------------------------------------------------------------------------------

struct Routed {
  std::vector<int32_t> expert;
  std::vector<float> weight;
};

Routed route(const RouterSpec& spec, const std::vector<float>& x, int64_t width) {
  const int64_t rows = static_cast<int64_t>(x.size()) / width;
  auto ops = make_cpu_ops();
  ops->reserve({.tokens = rows, .sequences = 1, .slots = 1, .max_length = 1, .logits_rows = 1},
               {.routers = {spec}});
  Routed out{std::vector<int32_t>(static_cast<size_t>(rows * spec.top_k), -1),
             std::vector<float>(static_cast<size_t>(rows * spec.top_k), NAN)};
  ops->route(spec, x.data(), rows, width, {out.expert.data(), out.weight.data()});
  return out;
}

/// Experts of one row, best first, and their weights.
std::pair<std::vector<int32_t>, Doubles> route_reference(const RouterSpec& spec, const float* x,
                                                         int64_t width) {
  Doubles score, key;
  for (int64_t e = 0; e < spec.experts; ++e) {
    double sum = 0;
    for (int64_t c = 0; c < width; ++c) sum += double{spec.weight[e * width + c]} * x[c];
    score.push_back(spec.score == RouterSpec::Score::kSigmoid ? sigmoid(sum) : std::exp(sum));
  }
  if (spec.score == RouterSpec::Score::kSoftmax) {
    const double total = std::accumulate(score.begin(), score.end(), 0.0);
    for (double& value : score) value /= total;
  }
  for (size_t e = 0; e < score.size(); ++e) {
    key.push_back(score[e] + (spec.selection_bias ? spec.selection_bias[e] : 0));
  }
  const auto by = [](const Doubles& values) {
    return [&values](int32_t a, int32_t b) {
      return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
    };
  };
  const int64_t size = spec.experts / spec.groups;
  Doubles worth;
  for (int64_t g = 0; g < spec.groups; ++g) {
    Doubles members(key.begin() + g * size, key.begin() + (g + 1) * size);
    std::sort(members.rbegin(), members.rend());
    worth.push_back(members[0] + (size > 1 ? members[1] : 0));
  }
  std::vector<int32_t> groups(worth.size()), best;
  std::iota(groups.begin(), groups.end(), 0);
  std::stable_sort(groups.begin(), groups.end(), by(worth));
  groups.resize(static_cast<size_t>(spec.kept_groups));
  for (int32_t e = 0; e < spec.experts; ++e) {
    if (std::count(groups.begin(), groups.end(), e / size)) best.push_back(e);
  }
  std::stable_sort(best.begin(), best.end(), by(key));
  best.resize(static_cast<size_t>(spec.top_k));
  double sum = 0;
  for (const int32_t e : best) sum += score[static_cast<size_t>(e)];
  Doubles weight;
  for (const int32_t e : best) {
    weight.push_back(score[static_cast<size_t>(e)] / (spec.normalize ? sum : 1) * spec.scale *
                     (spec.expert_scale ? spec.expert_scale[e] : 1));
  }
  return {best, weight};
}

TEST(CpuRouter, EqualsTheDefinition) {
  struct Shape {
    int64_t experts, top_k, groups, kept, width;
  };
  for (const Shape& shape :
       {Shape{1, 1, 1, 1, 5}, Shape{4, 4, 1, 1, 16}, Shape{7, 3, 1, 1, 33}, Shape{128, 8, 1, 1, 40},
        Shape{12, 4, 3, 2, 20}, Shape{12, 2, 4, 1, 20}, Shape{6, 3, 6, 3, 9},
        Shape{64, 6, 8, 4, 50}, Shape{70, 22, 2, 2, 17}}) {
    for (int flags = 0; flags < 16; ++flags) {
      const auto weight = random_floats(static_cast<size_t>(shape.experts * shape.width), 1);
      const auto bias = random_floats(static_cast<size_t>(shape.experts), 2, 0.5);
      const auto scale = random_floats(static_cast<size_t>(shape.experts), 3, 2);
      RouterSpec spec;
      spec.score = flags & 1 ? RouterSpec::Score::kSigmoid : RouterSpec::Score::kSoftmax;
      spec.experts = shape.experts;
      spec.top_k = shape.top_k;
      spec.weight = weight.data();
      if (flags & 2) spec.selection_bias = bias.data();
      if (flags & 4) spec.expert_scale = scale.data();
      spec.groups = shape.groups;
      spec.kept_groups = shape.kept;
      spec.normalize = flags & 8;
      spec.scale = 2.5f;
      constexpr int64_t kRows = 37;
      const auto x = random_floats(static_cast<size_t>(kRows * shape.width), 4);
      const Routed got = route(spec, x, shape.width);
      for (int64_t row = 0; row < kRows; ++row) {
        const auto [expert, expected] =
            route_reference(spec, x.data() + row * shape.width, shape.width);
        const auto first = row * shape.top_k;
        EXPECT_EQ(std::vector(got.expert.begin() + first, got.expert.begin() + first + shape.top_k),
                  expert)
            << shape.experts << " experts, flags " << flags << ", row " << row;
        EXPECT_LT(
            error_of(std::span(got.weight)
                         .subspan(static_cast<size_t>(first), static_cast<size_t>(shape.top_k)),
                     expected),
            3e-6);
      }
    }
  }
}

TEST(CpuRouter, ARowIsRoutedAlikeInAnyBatch) {
  constexpr int64_t kExperts = 70, kWidth = 100, kRows = 50;
  const auto weight = random_floats(kExperts * kWidth, 1);
  const RouterSpec spec{.experts = kExperts, .top_k = 5, .weight = weight.data()};
  const auto x = random_floats(kRows * kWidth, 2);
  const Routed all = route(spec, x, kWidth);
  for (size_t row = 0; row < kRows; ++row) {
    const Routed one = route(spec,
                             {x.begin() + static_cast<long>(row * kWidth),
                              x.begin() + static_cast<long>((row + 1) * kWidth)},
                             kWidth);
    for (size_t j = 0; j < 5; ++j) {
      EXPECT_EQ(one.expert[j], all.expert[row * 5 + j]);
      EXPECT_EQ(one.weight[j], all.weight[row * 5 + j]);
    }
  }
}

/// A router whose logits are given outright: width 1, x = 1.
Routed route_logits(RouterSpec spec, const std::vector<float>& logits) {
  spec.experts = static_cast<int64_t>(logits.size());
  spec.weight = logits.data();
  return route(spec, {1.0f}, 1);
}

TEST(CpuRouter, TiesTakeTheLowestIndex) {
  const std::vector<float> logits = {0, 3, 1, 3, 1, 3, 1, 0};
  const RouterSpec spec{.top_k = 5};
  EXPECT_THAT(route_logits(spec, logits).expert, ElementsAre(1, 3, 5, 2, 4));
  // Of four equal groups the first two stay.
  const RouterSpec grouped{.top_k = 3, .groups = 4, .kept_groups = 2};
  EXPECT_THAT(route_logits(grouped, {1, 2, 2, 1, 1, 2, 2, 1}).expert, ElementsAre(1, 2, 0));
  // Equal experts of a worse group come first if their index does.
  const RouterSpec two{.top_k = 3, .groups = 3, .kept_groups = 2};
  EXPECT_THAT(route_logits(two, {1, 1, 1, 2, 0, 0}).expert, ElementsAre(3, 0, 1));
}

TEST(CpuRouter, NanComesLast) {
  const RouterSpec spec{.score = RouterSpec::Score::kSigmoid, .top_k = 4, .normalize = false};
  EXPECT_THAT(route_logits(spec, {NAN, -5, NAN, 2}).expert, ElementsAre(3, 1, 0, 2));
  EXPECT_THAT(route_logits(spec, {NAN, NAN, NAN, NAN, NAN}).expert, ElementsAre(0, 1, 2, 3));
  // A NaN poisons a softmax, and the choice is still one of experts that exist.
  const RouterSpec soft{.top_k = 2};
  EXPECT_THAT(route_logits(soft, {1, NAN, 2}).expert, ElementsAre(0, 1));
  const RouterSpec grouped{
      .score = RouterSpec::Score::kSigmoid, .top_k = 2, .groups = 3, .kept_groups = 1};
  EXPECT_THAT(route_logits(grouped, {NAN, NAN, 1, NAN, -3, -3}).expert, ElementsAre(4, 5));
}

TEST(CpuRouter, ExtremeScoresStayFinite) {
  const RouterSpec spec{.score = RouterSpec::Score::kSigmoid, .top_k = 2};
  EXPECT_THAT(route_logits(spec, {-300, -400, -500}).weight, Each(0.0f));
  const RouterSpec soft{.top_k = 2};
  EXPECT_THAT(route_logits(soft, {3e38f, -3e38f, 0}).weight,
              ElementsAre(1.0f, ::testing::Lt(1e-30f)));
}

// --- the experts
// ----------------------------------------------------------------------------------

double activated(Activation activation, double gate, double up) {
  switch (activation) {
    case Activation::kSilu:
      return gate * sigmoid(gate) * up;
    case Activation::kGeluTanh:
      return gelu_tanh(gate) * up;
    case Activation::kRelu2:
      return up > 0 ? up * up : 0;
  }
  return NAN;
}

/// Weights of a layer of experts, and the same as the runtime may hold them.
struct ExpertLayer {
  int64_t experts, width, inner;
  Activation activation;
  FakePlugin gate_up, down;
  std::vector<float> wide_gate_up, wide_down;
  std::optional<PluginMatrix> gate_up_matrix, down_matrix;

  ExpertLayer(int64_t the_experts, int64_t the_width, int64_t the_inner, Activation the_activation,
              FakePlugin::Offers offers = {})
      : experts(the_experts),
        width(the_width),
        inner(the_inner),
        activation(the_activation),
        gate_up(inner * (is_gated(activation) ? 2 : 1), width, offers, experts),
        down(width, inner, offers, experts) {
    for (const uint16_t value : gate_up.weights) wide_gate_up.push_back(from_bf16(value));
    for (const uint16_t value : down.weights) wide_down.push_back(from_bf16(value));
    gate_up_matrix.emplace(gate_up.table, &gate_up, "gate_up", gate_up.rows, width, experts);
    down_matrix.emplace(down.table, &down, "down", width, inner, experts);
  }

  enum class Storage { kBf16, kF32, kPlugin };
  ExpertsSpec spec(int64_t top_k, Storage storage) const {
    ExpertsSpec out{top_k,
                    activation,
                    {.experts = experts, .rows = gate_up.rows, .cols = width},
                    {.experts = experts, .rows = width, .cols = inner}};
    if (storage == Storage::kBf16) {
      out.gate_up.bf16 = gate_up.weights.data();
      out.down.bf16 = down.weights.data();
    } else if (storage == Storage::kF32) {
      out.gate_up.f32 = wide_gate_up.data();
      out.down.f32 = wide_down.data();
    } else {
      out.gate_up.plugin = &*gate_up_matrix;
      out.down.plugin = &*down_matrix;
    }
    return out;
  }

  /// y += weight * expert(x) for one row.
  void add(int64_t expert, double weight, const float* x, double* y) const {
    const float* first = wide_gate_up.data() + expert * gate_up.rows * width;
    const auto dot = [&](int64_t row) {
      double sum = 0;
      for (int64_t c = 0; c < width; ++c) sum += double{first[row * width + c]} * x[c];
      return sum;
    };
    for (int64_t i = 0; i < inner; ++i) {
      const double gate = dot(i), up = is_gated(activation) ? dot(inner + i) : gate;
      const double h = weight * activated(activation, gate, up);
      for (int64_t r = 0; r < width; ++r) {
        y[r] += h * double{wide_down[static_cast<size_t>((expert * width + r) * inner + i)]};
      }
    }
  }
};

/// Distinct experts for every row, and weights.
Routed random_routing(int64_t rows, int64_t experts, int64_t top_k) {
  Random random(5);
  Routed out;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<int32_t> all(static_cast<size_t>(experts));
    std::iota(all.begin(), all.end(), 0);
    for (int64_t j = 0; j < top_k; ++j) {
      const auto pick =
          j + static_cast<int64_t>(random.uniform() * static_cast<double>(experts - j));
      std::swap(all[static_cast<size_t>(j)], all[static_cast<size_t>(pick)]);
      out.expert.push_back(all[static_cast<size_t>(j)]);
      out.weight.push_back(static_cast<float>(random.uniform()));
    }
  }
  return out;
}

std::vector<float> run(const ExpertsSpec& spec, Routed routing, const std::vector<float>& x) {
  const int64_t rows = static_cast<int64_t>(x.size()) / spec.gate_up.cols;
  auto ops = make_cpu_ops();
  ops->reserve({.tokens = rows, .sequences = 1, .slots = 1, .max_length = 1, .logits_rows = 1},
               {.experts = {spec}});
  std::vector<float> y(x.size(), NAN);
  ops->experts(spec, {routing.expert.data(), routing.weight.data()}, x.data(), rows, y.data());
  return y;
}

/// Checks every `stride`-th row.
void expect_reference(const ExpertLayer& layer, const Routed& routing, int64_t top_k,
                      const std::vector<float>& x, const std::vector<float>& y, int64_t stride) {
  const int64_t rows = static_cast<int64_t>(x.size()) / layer.width;
  ASSERT_EQ(x.size(), y.size());
  Doubles expected;
  std::vector<float> got;
  for (int64_t row = 0; row < rows; row += stride) {
    Doubles sum(static_cast<size_t>(layer.width));
    for (int64_t i = row * top_k; i < (row + 1) * top_k; ++i) {
      layer.add(routing.expert[static_cast<size_t>(i)], routing.weight[static_cast<size_t>(i)],
                x.data() + row * layer.width, sum.data());
    }
    expected.insert(expected.end(), sum.begin(), sum.end());
    const auto first = y.begin() + row * layer.width;
    got.insert(got.end(), first, first + layer.width);
  }
  EXPECT_LT(error_of(got, expected), 5e-6) << rows << " rows, " << layer.experts << " experts";
}

TEST(CpuExperts, EqualTheDefinition) {
  struct Shape {
    int64_t experts, top_k, width, inner;
  };
  for (const Shape& shape : {Shape{1, 1, 9, 5}, Shape{4, 4, 24, 70}, Shape{8, 2, 33, 65},
                             Shape{16, 3, 130, 16}, Shape{3, 1, 1, 4}}) {
    for (const Activation activation :
         {Activation::kSilu, Activation::kGeluTanh, Activation::kRelu2}) {
      const ExpertLayer layer(shape.experts, shape.width, shape.inner, activation);
      for (const int64_t rows : {1, 2, 19, 90}) {
        const auto x = random_floats(static_cast<size_t>(rows * shape.width), 6);
        const Routed routing = random_routing(rows, shape.experts, shape.top_k);
        for (const auto storage : {ExpertLayer::Storage::kBf16, ExpertLayer::Storage::kF32,
                                   ExpertLayer::Storage::kPlugin}) {
          const auto y = run(layer.spec(shape.top_k, storage), routing, x);
          expect_reference(layer, routing, shape.top_k, x, y, 1);
        }
      }
    }
  }
}

TEST(CpuExperts, PluginsMayServeOrTransform) {
  constexpr int64_t kExperts = 6, kTopK = 2, kWidth = 40, kInner = 24, kLimit = 50;
  for (const int64_t rows : {1, 25, 26, 120}) {
    const auto x = random_floats(static_cast<size_t>(rows * kWidth), 6);
    const Routed routing = random_routing(rows, kExperts, kTopK);
    for (int flags = 0; flags < 4; ++flags) {
      ExpertLayer layer(kExperts, kWidth, kInner, Activation::kSilu,
                        {.transform = (flags & 1) != 0, .expert_products = (flags & 2) != 0});
      layer.gate_up.limit = layer.down.limit = kLimit;
      const auto y = run(layer.spec(kTopK, ExpertLayer::Storage::kPlugin), routing, x);
      expect_reference(layer, routing, kTopK, x, y, 1);
      const bool served = (flags & 2) && rows * kTopK <= kLimit;
      EXPECT_EQ(layer.gate_up.products, served) << rows << " rows, flags " << flags;
      EXPECT_EQ(layer.down.products, served);
    }
  }
}

TEST(CpuExperts, AFailingPluginIsTheSubmissionsError) {
  ExpertLayer layer(2, 8, 8, Activation::kSilu);
  layer.gate_up.experts = 1;  // expert 1 becomes one that it refuses
  const auto x = random_floats(8, 1);
  try {
    run(layer.spec(1, ExpertLayer::Storage::kPlugin), {{1}, {1.0f}}, x);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "plugin_failed");
    EXPECT_THAT(error.what(), ::testing::HasSubstr("gate_up"));
  }
}

TEST(CpuExperts, AllRowsMayChooseTheSameExpert) {
  const ExpertLayer layer(5, 20, 12, Activation::kGeluTanh);
  const auto x = random_floats(60 * 20, 6);
  const Routed routing{std::vector<int32_t>(60, 4), std::vector<float>(60, 0.5f)};
  const auto y = run(layer.spec(1, ExpertLayer::Storage::kBf16), routing, x);
  expect_reference(layer, routing, 1, x, y, 1);
}

TEST(CpuExperts, LargeBatchesAreCutIntoBlocks) {
  // 4,500 rows x 8 choices x 512 floats are more than the 2^24 that are computed at once.
  const ExpertLayer layer(16, 200, 104, Activation::kSilu);
  constexpr int64_t kRows = 4500, kTopK = 8;
  const auto x = random_floats(kRows * 200, 6);
  const Routed routing = random_routing(kRows, 16, kTopK);
  const auto y = run(layer.spec(kTopK, ExpertLayer::Storage::kBf16), routing, x);
  expect_reference(layer, routing, kTopK, x, y, 101);
}

TEST(CpuExperts, ARowDoesNotDependOnItsNeighbours) {
  constexpr size_t kRows = 100, kWidth = 70, kTopK = 3;
  const ExpertLayer layer(8, kWidth, 45, Activation::kSilu, {.transform = true});
  const auto x = random_floats(kRows * kWidth, 6);
  const Routed routing = random_routing(kRows, 8, kTopK);
  for (const auto storage :
       {ExpertLayer::Storage::kBf16, ExpertLayer::Storage::kF32, ExpertLayer::Storage::kPlugin}) {
    const auto spec = layer.spec(kTopK, storage);
    const auto all = run(spec, routing, x);
    EXPECT_EQ(run(spec, routing, x), all);
    for (size_t row = 0; row < kRows; row += 7) {
      const auto piece = [row](const auto& values, size_t width) {
        const auto first = values.begin() + static_cast<long>(row * width);
        return std::vector(first, first + static_cast<long>(width));
      };
      const Routed alone{piece(routing.expert, kTopK), piece(routing.weight, kTopK)};
      EXPECT_EQ(run(spec, alone, piece(x, kWidth)), piece(all, kWidth)) << "row " << row;
    }
  }
}

}  // namespace
}  // namespace cbench::testing
