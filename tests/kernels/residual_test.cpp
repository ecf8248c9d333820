// Activations, scaled embeddings, capped logits and the ways back to the residual stream, against
// the CPU's.
#include "kernels/support.h"

namespace cbench::testing {
namespace {

constexpr Capacity kCapacity{
    .tokens = 300, .sequences = 16, .slots = 16, .max_length = 64, .logits_rows = 130};

struct Sides {
  Side cpu{make_cpu_ops()}, gpu{make_cuda_ops(0)};
  Random random{43};

  /// Calls f(side) on both.
  template <class F>
  void both(F f) {
    f(cpu);
    f(gpu);
  }
};

struct Case {
  int64_t rows, width;
};
const Case kCases[] = {{1, 1}, {1, 8}, {3, 7}, {5, 1000}, {1, 5120}, {130, 2816}, {2, 9001}};

TEST(Residual, AddNormed) {
  SKIP_WITHOUT_GPU();
  for (const auto& [rows, width] : kCases)
    for (const bool with_norm : {false, true}) {
      Sides sides;
      const int64_t n = rows * width;
      const auto y = random_values(sides.random, n, 3),
                 residual = random_values(sides.random, n, 1);
      const auto weight = random_values(sides.random, width, 1);
      const auto run = [&](Side& side) {
        const Norm norm{side.floats(weight), 1e-6f};
        void* to = side.act(residual);
        side->add_normed(side.act(y), with_norm ? &norm : nullptr, rows, width, 0.75f, to);
        return side.read(to, n);
      };
      sides.both([](Side& side) { side->reserve(kCapacity, {}); });
      EXPECT_LT(distance(run(sides.gpu), run(sides.cpu)), kOneRounding) << rows << " x " << width;
    }
}

TEST(Residual, AddGated) {
  SKIP_WITHOUT_GPU();
  for (const auto& [rows, width] : kCases) {
    Sides sides;
    const int64_t n = rows * width;
    const auto y = random_values(sides.random, n, 3), residual = random_values(sides.random, n, 1);
    const auto x = random_values(sides.random, n, 2);
    const auto gate = random_values(sides.random, width, 2 / std::sqrt(static_cast<double>(width)));
    const auto run = [&](Side& side) {
      void* to = side.act(residual);
      side->add_gated(side.act(y), side.act(x), side.floats(gate), rows, width, to);
      return side.read(to, n);
    };
    sides.both([](Side& side) { side->reserve(kCapacity, {}); });
    EXPECT_LT(distance(run(sides.gpu), run(sides.cpu)), kOneRounding) << rows << " x " << width;
  }
}

TEST(Residual, ScaledEmbedding) {
  SKIP_WITHOUT_GPU();
  for (const int64_t width : {1, 7, 64, 2816}) {
    Sides sides;
    const auto table = random_values(sides.random, 5 * width, 2);
    const auto run = [&](Side& side) {
      const Linear w{5, width, side.bf16(table)};
      side->reserve(kCapacity, {.matrices = {&w}});
      TestBatch batch;
      batch.add(0, 0, 9);
      side->upload(batch.view());
      void* y = side.act(9 * width);
      side->embed(w, std::sqrt(static_cast<float>(width)) + 0.1f, y);
      return side.read(y, 9 * width);
    };
    EXPECT_LT(distance(run(sides.gpu), run(sides.cpu)), kOneRounding) << width;
  }
}

TEST(Residual, CappedLogits) {
  SKIP_WITHOUT_GPU();
  for (const int64_t rows : {1, 2, 40})
    for (const int64_t cols : {33, 256}) {
      const int64_t vocab = 131;
      Sides sides;
      const auto w = random_values(sides.random, vocab * cols, 1);
      const auto x = random_values(sides.random, rows * cols, 2);
      const auto norm = random_values(sides.random, cols, 1);
      const auto run = [&](Side& side) {
        const Linear head{vocab, cols, side.bf16(w)};
        side->reserve(kCapacity, {.matrices = {&head}});
        TestBatch batch;
        for (int32_t i = 0; i < std::min<int64_t>(rows, 2); i++) batch.add(i, 3, 1);
        side->upload(batch.view());
        auto* logits = side.floats(std::vector<float>(static_cast<size_t>(rows * vocab)));
        side->lm_head(side.act(x), {side.floats(norm), 1e-6f}, rows, head, 3.f, logits);
        return side.read_floats(logits, rows * vocab);
      };
      const auto expected = run(sides.cpu), actual = run(sides.gpu);
      EXPECT_LT(distance(actual, expected), kOneRounding) << rows << " x " << cols;
      for (const float v : actual) EXPECT_LE(std::abs(v), 3.f);
    }
}

TEST(GateUpActivations, EqualCpu) {
  SKIP_WITHOUT_GPU();
  struct Shape {
    int64_t rows, cols, width;
  };
  const Shape shapes[] = {{1, 64, 96}, {1, 2816, 1021}, {2, 64, 33}, {1, 33, 5}, {70, 128, 96}};
  for (const Activation activation : {Activation::kGeluTanh, Activation::kRelu2})
    for (const auto& [rows, cols, width] : shapes)
      for (const bool steps : {false, true}) {
        if (steps && rows > 16) continue;
        Sides sides;
        const int64_t outputs = is_gated(activation) ? 2 * width : width;
        const auto w =
            random_values(sides.random, outputs * cols, 3 / std::sqrt(static_cast<double>(cols)));
        const auto x = random_values(sides.random, rows * cols, 2);
        const auto norm = random_values(sides.random, cols, 1);
        const auto run = [&](Side& side) {
          const Projection p{{{outputs, cols, side.bf16(w)}}};
          side->reserve(kCapacity, {.matrices = {&p.parts[0]}});
          TestBatch batch;
          for (int32_t i = 0; steps && i < rows; i++) batch.add(i, 3, 1);
          if (!steps) batch.add(0, 0, static_cast<int32_t>(rows));
          side->upload(batch.view());
          const Norm n{side.floats(norm), 1e-5f};
          void* y = side.act(rows * width);
          side->gate_up(side.act(x), &n, rows, p, activation, y);
          return side.read(y, rows * width);
        };
        EXPECT_LT(distance(run(sides.gpu), run(sides.cpu)), kSomeRoundings)
            << static_cast<int>(activation) << ": " << rows << " x " << cols << " x " << width
            << " steps " << steps;
      }
}

}  // namespace
}  // namespace cbench::testing
