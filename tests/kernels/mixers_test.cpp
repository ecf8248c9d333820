// Attention and delta net of the CUDA backend against the CPU's: prefill in pieces, then steps,
// over head shapes and packings.
#include "kernels/schedule.h"

namespace cbench::testing {
namespace {

struct AttentionShape {
  int64_t query_heads, kv_heads, head_dim, rotary;
  bool gated, norms;
  int64_t window = 0;
  bool v_norm = false, k_is_v = false;
  float scale = 0;  ///< 0: head_dim^-0.5
};

struct AttentionRig {
  Side side;
  AttentionSpec spec;
  KvCache cache;
  int64_t width = 0;

  AttentionRig(std::unique_ptr<Ops> ops, const AttentionShape& s) : side(std::move(ops)) {
    Random random(7);
    spec.query_heads = s.query_heads, spec.kv_heads = s.kv_heads, spec.head_dim = s.head_dim;
    spec.gated = s.gated;
    spec.scale = s.scale > 0 ? s.scale : 1 / std::sqrt(static_cast<float>(s.head_dim));
    spec.window = s.window, spec.k_is_v = s.k_is_v, spec.v_norm_eps = s.v_norm ? 1e-6f : 0.f;
    auto weights = random_values(random, s.head_dim, 1);
    for (float& w : weights) w += 1;
    if (s.norms) spec.q_norm = spec.k_norm = {side.floats(weights), 1e-6f};
    std::vector<float> frequencies;
    for (int64_t i = 0; i < s.rotary / 2; i++)
      frequencies.push_back(
          std::pow(10000.f, -2.f * static_cast<float>(i) / static_cast<float>(s.rotary)));
    spec.rope = {side.floats(frequencies), s.rotary, 1};
    width = (s.query_heads * (s.gated ? 2 : 1) + (s.k_is_v ? 1 : 2) * s.kv_heads) * s.head_dim;
    const std::vector<float> empty(static_cast<size_t>(kSlots * kLength * s.kv_heads * s.head_dim));
    cache = {side.act(empty), side.act(empty), kLength};
    side->reserve(kCapacity, {.attention = {spec}});
  }
  std::vector<float> run(const TestBatch& batch, std::span<const float> qkv) {
    const int64_t n = batch.rows() * spec.query_heads * spec.head_dim;
    void* y = side.act(n);
    side->upload(batch.view());
    side->attention(spec, cache, side.act(qkv), y);
    return side.read(y, n);
  }
};

class Attention : public ::testing::TestWithParam<AttentionShape> {};

TEST_P(Attention, EqualsCpu) {
  SKIP_WITHOUT_GPU();
  AttentionRig cpu(make_cpu_ops(), GetParam()), gpu(make_cuda_ops(0), GetParam());
  Random random(11);
  for (const TestBatch& batch : schedule()) {
    const auto qkv = random_values(random, batch.rows() * cpu.width, 1.5);
    const auto expected = cpu.run(batch, qkv), actual = gpu.run(batch, qkv);
    EXPECT_LT(distance(actual, expected), kSomeRoundings) << batch.rows() << " rows";
    EXPECT_LT(worst(actual, expected), 0.15);
  }
}

TEST_P(Attention, SameBitsWhateverThePacking) {
  SKIP_WITHOUT_GPU();
  AttentionRig together(make_cuda_ops(0), GetParam()), alone(make_cuda_ops(0), GetParam());
  Random random(12);
  for (const TestBatch& batch : schedule()) {
    const auto qkv = random_values(random, batch.rows() * together.width, 1.5);
    const auto all = together.run(batch, qkv);
    const bool steps = batch.rows() == static_cast<int64_t>(batch.spans.size());
    for (const Span& span : batch.spans) {
      if (!steps && span.count == 1) {  // alone it would be a step, another kernel
        TestBatch filler;
        filler.add(span.slot, span.start, 1);
        alone.run(filler, std::span(qkv).subspan(span.row * together.width, together.width));
        continue;
      }
      TestBatch one;
      one.add(span.slot, span.start, span.count);
      const auto got = alone.run(
          one, std::span(qkv).subspan(span.row * together.width, span.count * together.width));
      const auto* from = all.data() + span.row * GetParam().query_heads * GetParam().head_dim;
      EXPECT_TRUE(std::equal(got.begin(), got.end(), from)) << "slot " << span.slot;
    }
  }
}

const AttentionShape kAttentionShapes[] = {
    {4, 2, 16, 4, false, false},
    {4, 2, 32, 8, true, true},
    {4, 1, 32, 16, true, true},
    {2, 2, 64, 64, false, true},
    {8, 1, 128, 128, false, false},
    {24, 4, 256, 64, true, true},
    {6, 2, 80, 40, false, false},
    {3, 1, 48, 48, true, false},
    {20, 2, 8, 2, false, true},
    // Windows that end inside, at and beyond tiles of the context.
    {4, 2, 64, 64, false, true, 1},
    {4, 2, 64, 64, false, true, 63},
    {4, 1, 128, 64, false, false, 64},
    {2, 1, 32, 32, true, true, 65},
    {3, 3, 80, 40, false, false, 100},
    {4, 2, 256, 256, false, true, 128, true, false, 0.0625f},
    {2, 1, 16, 16, false, false, 1000},
    // Wide heads, v normalized, v from k, no rotation.
    {8, 1, 512, 128, false, true, 0, true, true, 0.05f},
    {4, 2, 512, 0, false, false},
    {5, 1, 320, 64, false, true, 70},
    {8, 2, 128, 0, false, false},
    {4, 2, 64, 0, false, false, 0, true, true},
    {2, 2, 24, 8, false, true, 40, true, true},
};
INSTANTIATE_TEST_SUITE_P(Shapes, Attention, ::testing::ValuesIn(kAttentionShapes),
                         [](const auto& shape) {
                           return std::to_string(shape.param.query_heads) + "q" +
                                  std::to_string(shape.param.kv_heads) + "kv" +
                                  std::to_string(shape.param.head_dim) + "w" +
                                  std::to_string(shape.param.window) + "_" +
                                  std::to_string(shape.index);
                         });

struct DeltaShape {
  int64_t key_heads, value_heads, key_dim, value_dim, conv;
  double correlation;  ///< keys that resemble each other make the triangular solve hard
};

struct DeltaRig {
  Side side;
  DeltaNetSpec spec;
  DeltaNetState state;
  int64_t width = 0;

  DeltaRig(std::unique_ptr<Ops> ops, const DeltaShape& s) : side(std::move(ops)) {
    Random random(9);
    spec.key_heads = s.key_heads, spec.value_heads = s.value_heads;
    spec.key_dim = s.key_dim, spec.value_dim = s.value_dim, spec.conv = s.conv;
    spec.conv_weight = side.floats(random_values(random, spec.conv_rows() * s.conv, 0.7));
    auto decay = random_values(random, s.value_heads, 0.5);
    for (float& a : decay) a -= 0.52f;
    spec.neg_exp_a = side.floats(decay);
    spec.dt_bias = side.floats(random_values(random, s.value_heads, 1));
    auto norm = random_values(random, s.value_dim, 0.5);
    for (float& w : norm) w += 1;
    spec.out_norm = {side.floats(norm), 1e-6f};
    width = spec.conv_rows() + s.value_heads * s.value_dim + 2 * s.value_heads;
    state.conv = side.floats(
        std::vector<float>(static_cast<size_t>(kSlots * spec.conv_rows() * (s.conv - 1))));
    state.recurrent = side.floats(
        std::vector<float>(static_cast<size_t>(kSlots * s.value_heads * s.key_dim * s.value_dim)));
    side->reserve(kCapacity, {.delta = {spec}});
  }
  std::vector<float> run(const TestBatch& batch, std::span<const float> in) {
    const int64_t n = batch.rows() * spec.value_heads * spec.value_dim;
    void* y = side.act(n);
    side->upload(batch.view());
    side->delta_net(spec, state, side.act(in), y);
    return side.read(y, n);
  }
  std::vector<float> states() {
    return side.read_floats(state.recurrent,
                            kSlots * spec.value_heads * spec.key_dim * spec.value_dim);
  }
};

std::vector<float> delta_input(Random& random, const DeltaRig& rig, int64_t rows,
                               double correlation) {
  auto in = random_values(random, rows * rig.width, 1.5);
  const int64_t keys = 2 * rig.spec.key_heads * rig.spec.key_dim;
  const auto common = random_values(random, keys, 1.5);
  for (int64_t row = 0; row < rows; row++)
    for (int64_t i = 0; i < keys; i++) {
      float& v = in[static_cast<size_t>(row * rig.width + i)];
      v = from_bf16(to_bf16(static_cast<float>(correlation * common[static_cast<size_t>(i)] +
                                               (1 - correlation) * v)));
    }
  return in;
}

class DeltaNet : public ::testing::TestWithParam<DeltaShape> {};

TEST_P(DeltaNet, EqualsCpu) {
  SKIP_WITHOUT_GPU();
  DeltaRig cpu(make_cpu_ops(), GetParam()), gpu(make_cuda_ops(0), GetParam());
  Random random(13);
  for (const TestBatch& batch : schedule()) {
    const auto in = delta_input(random, cpu, batch.rows(), GetParam().correlation);
    const auto expected = cpu.run(batch, in), actual = gpu.run(batch, in);
    EXPECT_LT(distance(actual, expected), 2 * kSomeRoundings) << batch.rows() << " rows";
    EXPECT_LT(distance(gpu.states(), cpu.states()), 2 * kSomeRoundings) << batch.rows() << " rows";
  }
}

TEST_P(DeltaNet, SameBitsWhateverThePacking) {
  SKIP_WITHOUT_GPU();
  DeltaRig together(make_cuda_ops(0), GetParam()), alone(make_cuda_ops(0), GetParam());
  Random random(14);
  expect_same_bits_alone(together, alone, [&](const TestBatch& batch) {
    return delta_input(random, together, batch.rows(), GetParam().correlation);
  });
}

TEST_P(DeltaNet, PiecesEqualTheWhole) {
  SKIP_WITHOUT_GPU();
  DeltaRig whole(make_cuda_ops(0), GetParam()), pieces(make_cuda_ops(0), GetParam());
  Random random(15);
  const auto in = delta_input(random, whole, 200, GetParam().correlation);
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

const DeltaShape kDeltaShapes[] = {
    {2, 4, 16, 16, 4, 0},      {2, 6, 16, 16, 4, 0.5},   {1, 2, 16, 32, 4, 0},
    {1, 2, 32, 32, 4, 0.9},    {2, 6, 128, 128, 4, 0},   {2, 2, 128, 128, 4, 0.9},
    {1, 4, 128, 128, 4, 0.97}, {1, 8, 128, 128, 4, 0.5}, {1, 3, 128, 128, 2, 0.5},
    {1, 1, 40, 24, 3, 0.2},
};
INSTANTIATE_TEST_SUITE_P(Shapes, DeltaNet, ::testing::ValuesIn(kDeltaShapes),
                         [](const auto& shape) {
                           return std::to_string(shape.param.key_heads) + "k" +
                                  std::to_string(shape.param.value_heads) + "v" +
                                  std::to_string(shape.param.key_dim) + "x" +
                                  std::to_string(shape.param.value_dim) + "c" +
                                  std::to_string(shape.param.conv) + "_" +
                                  std::to_string(static_cast<int>(shape.param.correlation * 100));
                         });

}  // namespace
}  // namespace cbench::testing
