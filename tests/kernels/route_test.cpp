// The router of the CUDA backend: its choice against keys in double precision and the CPU's, ties,
// groups, company.
#include <algorithm>
#include <cmath>

#include "kernels/support.h"

namespace cbench::testing {
namespace {

using Score = RouterSpec::Score;

struct RouterShape {
  Score score;
  int64_t experts, top_k, width;
  bool bias, expert_scale, normalize;
  int64_t groups = 1, kept_groups = 1;
  bool bf16_weights = false;
};

constexpr Capacity kCapacity{
    .tokens = 400, .sequences = 16, .slots = 16, .max_length = 8, .logits_rows = 1};

struct RouterRig {
  Side side;
  RouterSpec spec;
  int64_t width;

  RouterRig(std::unique_ptr<Ops> ops, const RouterShape& s) : side(std::move(ops)), width(s.width) {
    Random random(41);
    spec.score = s.score, spec.experts = s.experts, spec.top_k = s.top_k;
    spec.groups = s.groups, spec.kept_groups = s.kept_groups;
    spec.normalize = s.normalize, spec.scale = 2.5f;
    auto weight =
        random_values(random, s.experts * s.width, 3 / std::sqrt(static_cast<double>(s.width)));
    for (float& w : weight)
      if (!s.bf16_weights) w *= 1.001f;  // more bits than BF16 has
    spec.weight = side.floats(weight);
    const auto bias = random_values(random, s.experts, 0.1);
    if (s.bias) spec.selection_bias = side.floats(bias);
    const auto scales = random_values(random, s.experts, 1);
    if (s.expert_scale) spec.expert_scale = side.floats(scales);
    side->reserve(kCapacity, {.routers = {spec}});
  }
  struct Result {
    std::vector<int32_t> expert;
    std::vector<float> weight;
    bool operator==(const Result&) const = default;
  };
  Result run(std::span<const float> x, bool steps) {
    const int64_t rows = static_cast<int64_t>(x.size()) / width, n = rows * spec.top_k;
    TestBatch batch;
    for (int32_t i = 0; steps && i < rows; i++) batch.add(i, 3, 1);
    if (!steps) batch.add(0, 0, static_cast<int32_t>(rows));
    side->upload(batch.view());
    Result result{std::vector<int32_t>(static_cast<size_t>(n), -1),
                  std::vector<float>(static_cast<size_t>(n))};
    const Routing routing{
        static_cast<int32_t*>(side.put(result.expert.data(), result.expert.size() * 4)),
        side.floats(result.weight)};
    side->route(spec, side.act(x), rows, width, routing);
    side->copy_out(result.expert.data(), routing.expert, result.expert.size() * 4);
    result.weight = side.read_floats(routing.weight, n);
    return result;
  }
};

class Route : public ::testing::TestWithParam<RouterShape> {};

constexpr std::pair<int64_t, bool> kModes[] = {{1, true},  {2, true},   {9, true},
                                               {1, false}, {70, false}, {400, false}};

TEST_P(Route, EqualsCpu) {
  SKIP_WITHOUT_GPU();
  RouterRig cpu(make_cpu_ops(), GetParam()), gpu(make_cuda_ops(0), GetParam());
  Random random(42);
  for (const auto& [rows, steps] : kModes) {
    const auto x = random_values(random, rows * GetParam().width, 1);
    const auto expected = cpu.run(x, steps), actual = gpu.run(x, steps);
    // Scores that agree to fp32's last bits may trade places; nothing else may.
    int64_t swapped = 0;
    for (size_t i = 0; i < expected.expert.size(); i++) {
      ASSERT_GE(actual.expert[i], 0);
      ASSERT_LT(actual.expert[i], GetParam().experts);
      if (actual.expert[i] != expected.expert[i]) {
        swapped++;
      } else {
        EXPECT_NEAR(actual.weight[i], expected.weight[i],
                    1e-4 * std::abs(expected.weight[i]) + 1e-6);
      }
    }
    EXPECT_LE(swapped, 2 + static_cast<int64_t>(expected.expert.size()) / 200) << rows << " rows";
    EXPECT_LT(distance(actual.weight, expected.weight), swapped ? 2e-2 : 1e-4) << rows << " rows";
  }
}

TEST_P(Route, SameBitsTwiceAndInOtherCompany) {
  SKIP_WITHOUT_GPU();
  RouterRig gpu(make_cuda_ops(0), GetParam());
  Random random(43);
  for (const auto& [rows, steps] : kModes) {
    const auto x = random_values(random, rows * GetParam().width, 1);
    const auto all = gpu.run(x, steps);
    EXPECT_EQ(gpu.run(x, steps), all);
    const int64_t fewer = rows / 2 + 1;
    const auto part =
        gpu.run(std::span(x).first(static_cast<size_t>(fewer * GetParam().width)), steps);
    EXPECT_TRUE(std::equal(part.expert.begin(), part.expert.end(), all.expert.begin()));
    EXPECT_TRUE(std::equal(part.weight.begin(), part.weight.end(), all.weight.begin()));
  }
}

const RouterShape kRouterShapes[] = {
    {Score::kSoftmax, 8, 2, 64, false, false, true},
    {Score::kSoftmax, 256, 8, 3072, false, false, true},
    {Score::kSoftmax, 128, 8, 2816, false, true, true},
    {Score::kSigmoid, 512, 22, 4096, true, false, true},
    {Score::kSigmoid, 64, 6, 5000, true, false, false},
    {Score::kSigmoid, 64, 6, 128, true, false, true, 8, 3},
    {Score::kSoftmax, 60, 4, 40, false, false, false, 4, 2},
    {Score::kSoftmax, 5, 5, 33, false, false, true},
    {Score::kSigmoid, 1000, 3, 100, true, true, true},
    {Score::kSigmoid, 32, 4, 64, true, false, true, 32, 8},
    {Score::kSigmoid, 1024, 40, 264, true, false, true},
    {Score::kSoftmax, 96, 8, 1000, false, false, true, 1, 1, true},
};
INSTANTIATE_TEST_SUITE_P(Shapes, Route, ::testing::ValuesIn(kRouterShapes), [](const auto& shape) {
  return std::to_string(shape.param.top_k) + "of" + std::to_string(shape.param.experts) + "w" +
         std::to_string(shape.param.width) + "g" + std::to_string(shape.param.groups);
});

TEST(RouteTies, TakeTheLowestIndex) {
  SKIP_WITHOUT_GPU();
  const int64_t experts = 70, width = 16;
  for (const Score score : {Score::kSoftmax, Score::kSigmoid})
    for (const bool steps : {false, true}) {
      Side gpu(make_cuda_ops(0));
      RouterSpec spec;
      spec.score = score, spec.experts = experts, spec.top_k = 5;
      std::vector<float> weight(static_cast<size_t>(experts * width), 0.f);
      for (int64_t c = 0; c < width; c++) weight[static_cast<size_t>(40 * width + c)] = 1;
      for (int64_t c = 0; c < width; c++) weight[static_cast<size_t>(33 * width + c)] = 1;
      spec.weight = gpu.floats(weight);
      gpu->reserve(kCapacity, {.routers = {spec}});
      TestBatch batch;
      if (steps) {
        batch.add(0, 3, 1);
        batch.add(1, 3, 1);
      } else {
        batch.add(0, 0, 2);
      }
      gpu->upload(batch.view());
      const std::vector<int32_t> none(10, -1);
      const Routing routing{static_cast<int32_t*>(gpu.put(none.data(), 40)),
                            gpu.floats(std::vector<float>(10))};
      gpu->route(spec, gpu.act(std::vector<float>(32, 1.f)), 2, width, routing);
      std::vector<int32_t> got(10);
      gpu->copy_out(got.data(), routing.expert, 40);
      EXPECT_EQ(got, (std::vector<int32_t>{33, 40, 0, 1, 2, 33, 40, 0, 1, 2}));
    }
}

}  // namespace
}  // namespace cbench::testing
