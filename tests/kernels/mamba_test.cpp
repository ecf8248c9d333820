// Mamba 2 of the CUDA backend against the CPU's: prefill in pieces, then steps, over head shapes
// and packings.
#include <limits>

#include "kernels/schedule.h"

namespace cbench::testing {
namespace {

struct MambaShape {
  int64_t heads, head_dim, groups, state, conv;
  bool bias, clamped;
};

struct MambaRig {
  Side side;
  Mamba2Spec spec;
  Mamba2State state;
  int64_t width = 0;

  MambaRig(std::unique_ptr<Ops> ops, const MambaShape& s) : side(std::move(ops)) {
    Random random(21);
    spec.heads = s.heads, spec.head_dim = s.head_dim, spec.groups = s.groups;
    spec.state = s.state, spec.conv = s.conv;
    spec.dt_min = s.clamped ? 0.05f : 0.f;
    spec.dt_max = s.clamped ? 0.5f : std::numeric_limits<float>::infinity();
    spec.conv_weight = side.floats(random_values(random, spec.conv_rows() * s.conv, 0.7));
    const auto bias = random_values(random, spec.conv_rows(), 0.5);
    if (s.bias) spec.conv_bias = side.floats(bias);
    auto decay = random_values(random, s.heads, 0.5);
    for (float& a : decay) a -= 0.52f;
    spec.neg_exp_a = side.floats(decay);
    spec.dt_bias = side.floats(random_values(random, s.heads, 1));
    spec.d = side.floats(random_values(random, s.heads, 1));
    auto norm = random_values(random, spec.inner(), 0.5);
    for (float& w : norm) w += 1;
    spec.out_norm = {side.floats(norm), 1e-5f};
    width = spec.inner() + spec.conv_rows() + s.heads;
    state.conv = side.floats(
        std::vector<float>(static_cast<size_t>(kSlots * spec.conv_rows() * (s.conv - 1))));
    state.recurrent =
        side.floats(std::vector<float>(static_cast<size_t>(kSlots * spec.inner() * s.state)));
    side->reserve(kCapacity, {.mamba2 = {spec}});
  }
  std::vector<float> run(const TestBatch& batch, std::span<const float> in) {
    const int64_t n = batch.rows() * spec.inner();
    void* y = side.act(n);
    side->upload(batch.view());
    side->mamba2(spec, state, side.act(in), y);
    return side.read(y, n);
  }
  std::vector<float> states() {
    return side.read_floats(state.recurrent, kSlots * spec.inner() * spec.state);
  }
  std::vector<float> conv_states() {
    return side.read_floats(state.conv, kSlots * spec.conv_rows() * (spec.conv - 1));
  }
};

class Mamba2 : public ::testing::TestWithParam<MambaShape> {};

TEST_P(Mamba2, EqualsCpu) {
  SKIP_WITHOUT_GPU();
  MambaRig cpu(make_cpu_ops(), GetParam()), gpu(make_cuda_ops(0), GetParam());
  Random random(22);
  for (const TestBatch& batch : schedule()) {
    const auto in = random_values(random, batch.rows() * cpu.width, 1.5);
    const auto expected = cpu.run(batch, in), actual = gpu.run(batch, in);
    EXPECT_LT(distance(actual, expected), 2 * kSomeRoundings) << batch.rows() << " rows";
    EXPECT_LT(distance(gpu.states(), cpu.states()), 2 * kSomeRoundings) << batch.rows() << " rows";
    EXPECT_EQ(gpu.conv_states(), cpu.conv_states()) << batch.rows() << " rows";
  }
}

TEST_P(Mamba2, SameBitsWhateverThePacking) {
  SKIP_WITHOUT_GPU();
  MambaRig together(make_cuda_ops(0), GetParam()), alone(make_cuda_ops(0), GetParam());
  Random random(23);
  expect_same_bits_alone(together, alone, [&](const TestBatch& batch) {
    return random_values(random, batch.rows() * together.width, 1.5);
  });
}

TEST_P(Mamba2, PiecesEqualTheWhole) {
  SKIP_WITHOUT_GPU();
  MambaRig whole(make_cuda_ops(0), GetParam()), pieces(make_cuda_ops(0), GetParam());
  Random random(24);
  const auto in = random_values(random, 200 * whole.width, 1.5);
  TestBatch all;
  all.add(0, 0, 200);
  const auto expected = whole.run(all, in);
  std::vector<float> got;
  for (const auto& [start, count] : {std::pair{0, 70}, {70, 127}, {197, 1}, {198, 1}, {199, 1}}) {
    TestBatch piece;
    piece.add(0, start, count);
    const auto part =
        pieces.run(piece, std::span(in).subspan(start * whole.width, count * whole.width));
    got.insert(got.end(), part.begin(), part.end());
  }
  EXPECT_LT(distance(got, expected), 2 * kSomeRoundings);
}

TEST(Mamba2Step, RecordedStepsMoveTheState) {
  SKIP_WITHOUT_GPU();
  const MambaShape shape{4, 64, 2, 128, 4, true, false};
  MambaRig direct(make_cuda_ops(0), shape), recorded(make_cuda_ops(0), shape);
  Random random(25);
  TestBatch step;
  step.add(1, 0, 1);
  step.add(4, 0, 1);
  void* in = recorded.side.act(2 * recorded.width);
  void* y = recorded.side.act(2 * recorded.spec.inner());
  recorded.side->upload(step.view());
  const auto replay =
      recorded.side->record([&] { recorded.side->mamba2(recorded.spec, recorded.state, in, y); });
  for (int32_t i = 0; i < 4; i++) {
    TestBatch next;
    next.add(1, i, 1);
    next.add(4, i, 1);
    const auto values = random_values(random, 2 * direct.width, 1.5);
    const auto expected = direct.run(next, values);
    std::vector<uint16_t> bits;
    for (const float v : values) bits.push_back(to_bf16(v));
    recorded.side->upload(next.view());
    recorded.side->copy_in(in, bits.data(), bits.size() * 2);
    replay->run();
    EXPECT_EQ(recorded.side.read(y, 2 * recorded.spec.inner()), expected) << i;
  }
  EXPECT_EQ(recorded.states(), direct.states());
}

const MambaShape kMambaShapes[] = {
    {4, 64, 2, 128, 4, true, false},  {16, 64, 1, 128, 4, true, true},
    {8, 64, 8, 128, 4, false, false}, {2, 64, 1, 128, 3, true, false},
    {6, 16, 3, 16, 4, true, false},   {4, 40, 2, 24, 4, true, true},
    {3, 64, 1, 64, 2, false, false},  {32, 64, 1, 128, 4, true, false},
};
INSTANTIATE_TEST_SUITE_P(Shapes, Mamba2, ::testing::ValuesIn(kMambaShapes), [](const auto& shape) {
  return std::to_string(shape.param.heads) + "h" + std::to_string(shape.param.head_dim) + "x" +
         std::to_string(shape.param.state) + "g" + std::to_string(shape.param.groups) + "c" +
         std::to_string(shape.param.conv);
});

}  // namespace
}  // namespace cbench::testing
