// Routed experts of the CUDA backend, stored as BF16, against the CPU's: over shapes, prefill and
// steps, other routings in the company, recorded steps.
#include "kernels/experts_rig.h"

namespace cbench::testing {
namespace {

class Experts : public ::testing::TestWithParam<ExpertShape> {};

struct Mode {
  int64_t rows;
  bool steps;
};
constexpr Mode kModes[] = {{1, true},  {2, true},   {7, true},    {1, false},
                           {3, false}, {65, false}, {300, false}, {400, false}};

TEST_P(Experts, EqualsCpu) {
  SKIP_WITHOUT_GPU();
  ExpertRig cpu(make_cpu_ops(), GetParam()), gpu(make_cuda_ops(0), GetParam());
  cpu.reserve(), gpu.reserve();
  Random random(32);
  for (const auto& [rows, steps] : kModes) {
    const HostRouting routing(random, rows, GetParam());
    const auto x = random_values(random, rows * GetParam().width, 2);
    const auto expected = cpu.run(routing, x, steps), actual = gpu.run(routing, x, steps);
    EXPECT_LT(distance(actual, expected), kSomeRoundings) << rows << " rows, steps " << steps;
    EXPECT_LT(worst(actual, expected), 0.15) << rows << " rows, steps " << steps;
  }
}

TEST_P(Experts, SameBitsTwiceAndInOtherCompany) {
  SKIP_WITHOUT_GPU();
  ExpertRig gpu(make_cuda_ops(0), GetParam());
  gpu.reserve();
  const int64_t width = GetParam().width, top_k = GetParam().top_k;
  Random random(33);
  for (const auto& [rows, steps] : kModes) {
    const HostRouting routing(random, rows, GetParam());
    const auto x = random_values(random, rows * width, 2);
    const auto all = gpu.run(routing, x, steps);
    EXPECT_EQ(gpu.run(routing, x, steps), all) << rows;
    // The first rows of a smaller batch.
    const int64_t fewer = rows / 2 + 1;
    HostRouting part = routing;
    part.expert.resize(static_cast<size_t>(fewer * top_k));
    part.weight.resize(static_cast<size_t>(fewer * top_k));
    const auto got = gpu.run(part, std::span(x).first(static_cast<size_t>(fewer * width)), steps);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin())) << rows;
    // The last row while all others crowd on few experts.
    HostRouting crowd(random, rows, GetParam(), top_k);
    const auto last = static_cast<size_t>((rows - 1) * top_k);
    std::copy(routing.expert.begin() + last, routing.expert.end(), crowd.expert.begin() + last);
    std::copy(routing.weight.begin() + last, routing.weight.end(), crowd.weight.begin() + last);
    const auto crowded = gpu.run(crowd, x, steps);
    EXPECT_TRUE(std::equal(crowded.end() - width, crowded.end(), all.end() - width)) << rows;
  }
}

TEST_P(Experts, RecordedStepsFollowTheRouting) {
  SKIP_WITHOUT_GPU();
  ExpertRig gpu(make_cuda_ops(0), GetParam());
  gpu.reserve();
  const int64_t width = GetParam().width;
  Random random(34);
  for (const int64_t rows : {1, 3}) {
    const HostRouting first(random, rows, GetParam());
    const Routing routing = gpu.put(first);
    void* x = gpu.side.act(rows * width);
    void* y = gpu.side.act(rows * width);
    gpu.upload(rows, true);
    const auto replay = gpu.side->record([&] { gpu.side->experts(gpu.spec, routing, x, rows, y); });
    for (int i = 0; i < 3; i++) {
      const HostRouting next(random, rows, GetParam());
      const auto values = random_values(random, rows * width, 2);
      std::vector<uint16_t> bits;
      for (const float v : values) bits.push_back(to_bf16(v));
      gpu.side->copy_in(routing.expert, next.expert.data(), next.expert.size() * 4);
      gpu.side->copy_in(routing.weight, next.weight.data(), next.weight.size() * 4);
      gpu.side->copy_in(x, bits.data(), bits.size() * 2);
      replay->run();
      const auto got = gpu.side.read(y, rows * width);
      EXPECT_EQ(got, gpu.run(next, values, true)) << rows << " rows, " << i;
    }
  }
}

TEST(ManyRows, GoThroughInRounds) {
  SKIP_WITHOUT_GPU();
  const ExpertShape shape{8, 8, 4096, 8, Activation::kSilu};
  const int64_t rows = 12500, few = 5;  // 66 KB of intermediates each, of 768 MiB
  ExpertRig gpu(make_cuda_ops(0), shape);
  Capacity capacity = kExpertCapacity;
  capacity.tokens = rows;
  gpu.reserve(capacity);
  Random random(35);
  const HostRouting routing(random, rows, shape);
  const auto x = random_values(random, rows * shape.width, 2);
  const auto all = gpu.run(routing, x, false);
  for (const int64_t from : {int64_t{0}, rows / 2 - 2, rows - few}) {
    HostRouting part = routing;
    const auto at = from * shape.top_k, end = (from + few) * shape.top_k;
    part.expert.assign(routing.expert.begin() + at, routing.expert.begin() + end);
    part.weight.assign(routing.weight.begin() + at, routing.weight.begin() + end);
    const auto got = gpu.run(part,
                             std::span(x).subspan(static_cast<size_t>(from * shape.width),
                                                  static_cast<size_t>(few * shape.width)),
                             false);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin() + from * shape.width)) << from;
  }
}

const ExpertShape kExpertShapes[] = {
    {8, 2, 64, 32, Activation::kSilu},      {16, 4, 128, 96, Activation::kGeluTanh},
    {32, 22, 96, 40, Activation::kRelu2},   {64, 8, 256, 128, Activation::kSilu},
    {5, 1, 33, 7, Activation::kSilu},       {6, 3, 20, 13, Activation::kRelu2},
    {7, 7, 72, 200, Activation::kGeluTanh}, {4, 2, 2048, 512, Activation::kSilu},
    {300, 6, 64, 24, Activation::kRelu2},   {3, 2, 64, 8, Activation::kGeluTanh},
    {12, 8, 1024, 704, Activation::kRelu2}, {9, 9, 40, 136, Activation::kRelu2},
};
INSTANTIATE_TEST_SUITE_P(Shapes, Experts, ::testing::ValuesIn(kExpertShapes),
                         [](const auto& shape) {
                           return std::to_string(shape.param.top_k) + "of" +
                                  std::to_string(shape.param.experts) + "w" +
                                  std::to_string(shape.param.width) + "i" +
                                  std::to_string(shape.param.inner);
                         });

}  // namespace
}  // namespace cbench::testing
