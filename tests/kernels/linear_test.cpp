// Products, norms and row ops of the CUDA backend against the CPU's.
#include <numeric>

#include "kernels/support.h"
#include "runtime/plugin_matrix.h"

namespace cbench::testing {
namespace {

constexpr Capacity kCapacity{
    .tokens = 300, .sequences = 16, .slots = 16, .max_length = 64, .logits_rows = 130};

struct Shape {
  int64_t rows, cols;
  std::vector<int64_t> parts;
};
const Shape kShapes[] = {
    {1, 8, {8}},        {1, 64, {131}},        {1, 96, {5, 3}},       {1, 5120, {1000, 24}},
    {1, 17, {9}},       {1, 2560, {4099}},     {2, 64, {64, 32}},     {3, 33, {7, 2}},
    {5, 256, {24, 40}}, {65, 136, {72, 8, 8}}, {130, 512, {384}},     {300, 1024, {520, 8}},
    {17, 64, {131}},    {4, 5120, {96}},       {129, 96, {64, 4, 4}},
};

struct Sides {
  Side cpu{make_cpu_ops()}, gpu{make_cuda_ops(0)};
  Random random{42};

  void reserve(std::span<const Linear* const> cpu_matrices,
               std::span<const Linear* const> gpu_matrices) {
    cpu->reserve(kCapacity, {.matrices = {cpu_matrices.begin(), cpu_matrices.end()}});
    gpu->reserve(kCapacity, {.matrices = {gpu_matrices.begin(), gpu_matrices.end()}});
  }
  /// One sequence of `rows` rows, or steps of as many sequences.
  void upload(int64_t rows, bool steps) {
    TestBatch batch;
    for (int32_t i = 0; steps && i < rows; i++) batch.add(i, 3, 1);
    if (!steps) batch.add(0, 0, static_cast<int32_t>(rows));
    cpu->upload(batch.view());
    gpu->upload(batch.view());
  }
};

class Products : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_GPU();
    const Shape& s = GetParam();
    sides_ = std::make_unique<Sides>();
    const double amplitude = 1.5 / std::sqrt(static_cast<double>(s.cols));
    x_ = random_values(sides_->random, s.rows * s.cols, 2);
    norm_ = random_values(sides_->random, s.cols, 1);
    for (int64_t rows : s.parts) {
      const auto w = random_values(sides_->random, rows * s.cols, amplitude);
      cpu_.parts.push_back({rows, s.cols, sides_->cpu.bf16(w)});
      gpu_.parts.push_back({rows, s.cols, sides_->gpu.bf16(w)});
    }
    std::vector<const Linear*> cpu, gpu;
    for (const Linear& w : cpu_.parts) cpu.push_back(&w);
    for (const Linear& w : gpu_.parts) gpu.push_back(&w);
    sides_->reserve(cpu, gpu);
  }
  std::vector<bool> modes() const {
    return GetParam().rows <= 16 ? std::vector<bool>{false, true} : std::vector<bool>{false};
  }
  std::unique_ptr<Sides> sides_;
  std::vector<float> x_, norm_;
  Projection cpu_, gpu_;
};

TEST_P(Products, Project) {
  const Shape& s = GetParam();
  const int64_t n = cpu_.rows() * s.rows;
  for (const bool steps : modes())
    for (const bool with_norm : {false, true}) {
      sides_->upload(s.rows, steps);
      const Norm cpu_norm{sides_->cpu.floats(norm_), 1e-6f},
          gpu_norm{sides_->gpu.floats(norm_), 1e-6f};
      void* a = sides_->cpu.act(n);
      void* b = sides_->gpu.act(n);
      sides_->cpu->project(sides_->cpu.act(x_), with_norm ? &cpu_norm : nullptr, s.rows, cpu_, a);
      sides_->gpu->project(sides_->gpu.act(x_), with_norm ? &gpu_norm : nullptr, s.rows, gpu_, b);
      const auto expected = sides_->cpu.read(a, n), actual = sides_->gpu.read(b, n);
      EXPECT_LT(distance(actual, expected), kOneRounding)
          << "steps " << steps << " norm " << with_norm;
      EXPECT_LT(worst(actual, expected), 0.05);
    }
}

TEST_P(Products, ProjectAdd) {
  const Shape& s = GetParam();
  const int64_t n = s.parts[0] * s.rows;
  for (const bool steps : modes()) {
    sides_->upload(s.rows, steps);
    const auto residual = random_values(sides_->random, n, 1);
    void* a = sides_->cpu.act(residual);
    void* b = sides_->gpu.act(residual);
    sides_->cpu->project_add(sides_->cpu.act(x_), s.rows, cpu_.parts[0], a);
    sides_->gpu->project_add(sides_->gpu.act(x_), s.rows, gpu_.parts[0], b);
    EXPECT_LT(distance(sides_->gpu.read(b, n), sides_->cpu.read(a, n)), kOneRounding);
  }
}

TEST_P(Products, LmHead) {
  const Shape& s = GetParam();
  if (s.rows > kCapacity.logits_rows) return;
  const int64_t n = s.parts[0] * s.rows;
  for (const bool steps : modes()) {
    sides_->upload(s.rows, steps);
    auto* a = sides_->cpu.floats(std::vector<float>(static_cast<size_t>(n)));
    auto* b = sides_->gpu.floats(std::vector<float>(static_cast<size_t>(n)));
    const Norm cpu_norm{sides_->cpu.floats(norm_), 1e-6f},
        gpu_norm{sides_->gpu.floats(norm_), 1e-6f};
    sides_->cpu->lm_head(sides_->cpu.act(x_), cpu_norm, s.rows, cpu_.parts[0], 0, a);
    sides_->gpu->lm_head(sides_->gpu.act(x_), gpu_norm, s.rows, gpu_.parts[0], 0, b);
    const auto expected = sides_->cpu.read_floats(a, n), actual = sides_->gpu.read_floats(b, n);
    EXPECT_LT(distance(actual, expected), kOneRounding);
    if (steps && s.rows == 1) {  // the normalized row is not rounded
      EXPECT_LT(distance(actual, expected), 1e-5);
    }
  }
}

TEST_P(Products, SameBitsTwiceAndInOtherCompany) {
  const Shape& s = GetParam();
  if (s.rows < 3) return;
  const int64_t n = cpu_.rows() * s.rows;
  const Norm norm{sides_->gpu.floats(norm_), 1e-6f};
  void* x = sides_->gpu.act(x_);
  void* y = sides_->gpu.act(n);
  sides_->upload(s.rows, false);
  sides_->gpu->project(x, &norm, s.rows, gpu_, y);
  const auto all = sides_->gpu.read(y, n);
  sides_->gpu->project(x, &norm, s.rows, gpu_, y);
  EXPECT_EQ(all, sides_->gpu.read(y, n));
  const int64_t fewer = s.rows / 2 + 1;  // the same first rows in a smaller batch
  sides_->upload(fewer, false);
  sides_->gpu->project(x, &norm, fewer, gpu_, y);
  const auto part = sides_->gpu.read(y, cpu_.rows() * fewer);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin()));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Products, ::testing::ValuesIn(kShapes), [](const auto& shape) {
  return std::to_string(shape.param.rows) + "x" + std::to_string(shape.param.cols) + "x" +
         std::to_string(shape.param.parts[0]);
});

TEST(GateUp, EqualsCpu) {
  SKIP_WITHOUT_GPU();
  for (const auto& [rows, cols, width] : {std::array<int64_t, 3>{1, 64, 96},
                                          {1, 5120, 1021},
                                          {2, 64, 33},
                                          {1, 33, 5},
                                          {70, 128, 96},
                                          {300, 256, 264}})
    for (const bool joined : {false, true})
      for (const bool steps : {false, true}) {
        if (steps && rows > 16) continue;
        Sides sides;
        const double amplitude = 1.5 / std::sqrt(static_cast<double>(cols));
        const auto w = random_values(sides.random, 2 * width * cols, amplitude);
        const auto x = random_values(sides.random, rows * cols, 2);
        const auto norm = random_values(sides.random, cols, 1);
        const auto bind = [&](Side& side) {
          Projection p;
          if (joined) {
            p.parts.push_back({2 * width, cols, side.bf16(w)});
          } else {
            p.parts.push_back({width, cols, side.bf16(std::span(w).first(w.size() / 2))});
            p.parts.push_back({width, cols, side.bf16(std::span(w).last(w.size() / 2))});
          }
          return p;
        };
        const Projection a = bind(sides.cpu), b = bind(sides.gpu);
        std::vector<const Linear*> cpu, gpu;
        for (const Linear& part : a.parts) cpu.push_back(&part);
        for (const Linear& part : b.parts) gpu.push_back(&part);
        sides.reserve(cpu, gpu);
        sides.upload(rows, steps);
        const Norm cpu_norm{sides.cpu.floats(norm), 1e-5f}, gpu_norm{sides.gpu.floats(norm), 1e-5f};
        void* ya = sides.cpu.act(rows * width);
        void* yb = sides.gpu.act(rows * width);
        sides.cpu->gate_up(sides.cpu.act(x), &cpu_norm, rows, a, Activation::kSilu, ya);
        sides.gpu->gate_up(sides.gpu.act(x), &gpu_norm, rows, b, Activation::kSilu, yb);
        EXPECT_LT(distance(sides.gpu.read(yb, rows * width), sides.cpu.read(ya, rows * width)),
                  kSomeRoundings)
            << rows << " x " << cols << " x " << width << (joined ? " joined" : "") << " steps "
            << steps;
      }
}

TEST(LowRank, EqualsCpu) {
  SKIP_WITHOUT_GPU();
  for (const int64_t rows : {1, 40}) {
    Sides sides;
    const int64_t n = 72, rank = 16, cols = 64;
    const auto wa = random_values(sides.random, n * rank, 0.3),
               wb = random_values(sides.random, rank * cols, 0.2);
    const auto x = random_values(sides.random, rows * cols, 2);
    const auto bind = [&](Side& side) {
      Linear w{n, rank, side.bf16(wa)};
      w.low_rank_b = std::make_shared<Linear>(Linear{rank, cols, side.bf16(wb)});
      return w;
    };
    const Linear a = bind(sides.cpu), b = bind(sides.gpu);
    const Linear *pa = &a, *pb = &b;
    sides.reserve({&pa, 1}, {&pb, 1});
    sides.upload(rows, rows == 1);
    void* ya = sides.cpu.act(rows * n);
    void* yb = sides.gpu.act(rows * n);
    sides.cpu->project(sides.cpu.act(x), nullptr, rows, {{a}}, ya);
    sides.gpu->project(sides.gpu.act(x), nullptr, rows, {{b}}, yb);
    EXPECT_LT(distance(sides.gpu.read(yb, rows * n), sides.cpu.read(ya, rows * n)), kSomeRoundings);
  }
}

TEST(Rows, NormEmbedGatherBias) {
  SKIP_WITHOUT_GPU();
  for (const int64_t width : {1, 7, 8, 64, 96, 1000, 5120, 9001}) {
    Sides sides;
    const int64_t rows = 5;
    const auto table = random_values(sides.random, rows * width, 2);
    const auto weight = random_values(sides.random, width, 1);
    const Linear a{rows, width, sides.cpu.bf16(table)}, b{rows, width, sides.gpu.bf16(table)};
    const Linear *pa = &a, *pb = &b;
    sides.reserve({&pa, 1}, {&pb, 1});
    sides.upload(9, false);
    const int64_t n = 9 * width;
    void* ya = sides.cpu.act(n);
    void* yb = sides.gpu.act(n);
    sides.cpu->embed(a, 1, ya);
    sides.gpu->embed(b, 1, yb);
    EXPECT_EQ(sides.gpu.read(yb, n), sides.cpu.read(ya, n)) << width;

    void* na = sides.cpu.act(n);
    void* nb = sides.gpu.act(n);
    sides.cpu->rms_norm(ya, {sides.cpu.floats(weight), 1e-6f}, 9, width, na);
    sides.gpu->rms_norm(yb, {sides.gpu.floats(weight), 1e-6f}, 9, width, nb);
    EXPECT_LT(distance(sides.gpu.read(nb, n), sides.cpu.read(na, n)), kOneRounding) << width;

    const int32_t picks[] = {8, 0, 0, 5};
    sides.cpu->gather_rows(ya, picks, width, na);
    sides.gpu->gather_rows(yb, picks, width, nb);
    EXPECT_EQ(sides.gpu.read(nb, 4 * width), sides.cpu.read(na, 4 * width));

    sides.cpu->add_bias(ya, 9, width, sides.cpu.floats(weight));
    sides.gpu->add_bias(yb, 9, width, sides.gpu.floats(weight));
    EXPECT_LT(distance(sides.gpu.read(yb, n), sides.cpu.read(ya, n)), kOneRounding);
  }
}

TEST(Rows, AdvanceGreedyTakesTheLowestIdOnTies) {
  SKIP_WITHOUT_GPU();
  for (const int64_t vocab : {1, 2, 131, 1000, 248320}) {
    Sides sides;
    sides.reserve({}, {});
    sides.upload(3, true);
    auto logits = random_values(sides.random, 3 * vocab, 4);
    const auto at = [&](int64_t row, int64_t id) -> float& {
      return logits[static_cast<size_t>(row * vocab + id)];
    };
    at(0, vocab - 1) = 9, at(0, vocab / 2) = 9;
    at(1, 0) = -5;
    for (int64_t i = 0; i < vocab; i++) at(2, i) = -3;
    sides.cpu->advance_greedy(sides.cpu.floats(logits), vocab);
    sides.gpu->advance_greedy(sides.gpu.floats(logits), vocab);
    std::vector<int32_t> a(3), b(3);
    sides.cpu->read_ids(a);
    sides.gpu->read_ids(b);
    EXPECT_EQ(a, b) << vocab;
    EXPECT_EQ(b[0], vocab / 2);
    EXPECT_EQ(b[2], 0);
  }
}

}  // namespace
}  // namespace cbench::testing
