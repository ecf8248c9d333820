// Weights that stream through slots: bit for bit what the resident model computes, whichever blocks
// stream; the choice of blocks; and errors before anything is loaded.
#include <cstring>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/support.h"
#include "runtime/weight_memory.h"
#include "util/error.h"

namespace cbench::testing {
namespace {

using ::testing::HasSubstr;

constexpr Capacity kCapacity{
    .tokens = 128, .sequences = 4, .slots = 4, .max_length = 96, .logits_rows = 32};

/// Every `period`-th block streams; 0 = none.
StreamPlan every(const ModelConfig& config, size_t period) {
  StreamPlan plan;
  for (size_t i = 0; period > 0 && i < config.blocks.size(); ++i) {
    plan.bytes.push_back((i + 1) % period == 0 ? block_bytes(config, i, sizeof(float)) : 0);
  }
  return plan;
}

struct Streamed {
  std::unique_ptr<Ops> ops = make_cpu_ops();
  std::shared_ptr<WeightMemory> memory;
  std::unique_ptr<Model> model;

  Streamed(const Fixture& fixture, StreamPlan plan)
      : memory(std::make_shared<WeightMemory>(*ops, std::move(plan))) {
    CheckpointSource source(*ops, fixture.store, memory);
    model = std::make_unique<Model>(*ops, fixture.config, source, kCapacity);
    ops->arena().freeze();
  }
};

std::vector<int32_t> some_ids(const Model& model, int32_t count, int32_t seed) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) {
    ids.push_back((seed + 7 * i + i * i) % static_cast<int32_t>(model.config().vocab));
  }
  return ids;
}

/// Prefill, steps of several sequences and of one, and greedy decoding in turn.
std::vector<float> work(Model& model) {
  std::vector<float> all;
  const auto add = [&](const std::vector<Piece>& pieces) {
    const auto logits = run_packed(model, pieces);
    all.insert(all.end(), logits.begin(), logits.end());
  };
  add({{0, 0, some_ids(model, 37, 3)}, {2, 0, some_ids(model, 70, 5)}, {1, 0, {4}}});
  for (int32_t t = 0; t < 3; ++t) add({{0, 37 + t, {t}}, {2, 70 + t, {t + 1}}});
  add({{1, 1, {9}}});
  for (int round = 0; round < 2; ++round) {
    add({{3, 0, some_ids(model, 11, 8)}});
    model.generate(3, 1, 11, 9, [&](int32_t id) {
      all.push_back(static_cast<float>(id));
      return true;
    });
  }
  return all;
}

class Streaming : public ::testing::TestWithParam<const char*> {};

TEST_P(Streaming, IsTheResidentModelBitForBit) {
  Fixture fixture(std::string(CBENCH_FIXTURES "/golden/") + GetParam(), kCapacity);
  const auto expected = work(*fixture.model);
  for (const size_t period : {size_t{0}, size_t{1}, size_t{2}, fixture.config.blocks.size()}) {
    Streamed streamed(fixture, every(fixture.config, period));
    EXPECT_EQ(streamed.memory->streamed() > 0, period > 0);
    const auto got = work(*streamed.model);
    ASSERT_EQ(got.size(), expected.size());
    EXPECT_EQ(0, std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)))
        << "every " << period << "th block streams";
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Streaming,
                         ::testing::Values("qwen3_5_tied", "qwen3_5_shapes", "llama_untied_bias",
                                           "qwen3_5_moe", "gemma4_moe", "nemotron_h"),
                         [](const auto& test) { return std::string(test.param); });

TEST(StreamedWeights, AreOnTheDeviceOnlyInTheirSlots) {
  Fixture fixture(CBENCH_FIXTURES "/golden/qwen3_5_moe", kCapacity);
  const StreamPlan plan = every(fixture.config, 1);
  Streamed streamed(fixture, plan);
  const auto weights = [](Ops& ops) {
    return ops.arena().report().live[static_cast<size_t>(Category::kWeights)];
  };
  EXPECT_EQ(weights(*streamed.ops), static_cast<int64_t>(StreamPlan::kSlots * plan.slot_bytes()));
  EXPECT_EQ(streamed.memory->streamed(), static_cast<int64_t>(plan.host_bytes()));
}

/// A config of blocks with MLPs of the given widths.
ModelConfig of_widths(const std::vector<int64_t>& widths) {
  ModelConfig config;
  config.hidden = 64;
  config.vocab = 10;
  config.tied_embedding = true;
  for (const int64_t width : widths) {
    BlockConfig block;
    block.mlp.width = width;
    block.mlp.prefix = "mlp.";
    config.blocks.push_back(block);
  }
  return config;
}

std::vector<size_t> streaming(const StreamPlan& plan) {
  std::vector<size_t> blocks;
  for (size_t i = 0; i < plan.bytes.size(); ++i) {
    if (plan.bytes[i] > 0) blocks.push_back(i);
  }
  return blocks;
}

TEST(PlanStream, TakesTheFewestBlocksEvenlySpread) {
  const ModelConfig config = of_widths(std::vector<int64_t>(8, 16));
  const auto one = static_cast<int64_t>(block_bytes(config, 0, 2));
  EXPECT_EQ(one, 3 * 64 * 16 * 2);
  EXPECT_FALSE(plan_stream(config, 2, 8 * one).streams());
  struct Case {
    int64_t budget;
    std::vector<size_t> blocks;
  };
  const Case cases[] = {{8 * one - 1, {2, 5, 7}},
                        {7 * one, {2, 5, 7}},
                        {6 * one, {1, 3, 5, 7}},
                        {6 * one - 1, {1, 3, 4, 6, 7}},
                        {2 * one, {0, 1, 2, 3, 4, 5, 6, 7}}};
  for (const Case& c : cases) {
    const StreamPlan plan = plan_stream(config, 2, c.budget);
    EXPECT_EQ(streaming(plan), c.blocks) << c.budget;
    EXPECT_EQ(plan.slot_bytes(), static_cast<size_t>(one));
  }
}

TEST(PlanStream, KeepsSmallBlocksAsLongAsItCan) {
  const ModelConfig config = of_widths({4, 16, 4, 16, 4, 16, 4});
  const auto small = static_cast<int64_t>(block_bytes(config, 0, 2)), large = 4 * small;
  EXPECT_EQ(streaming(plan_stream(config, 2, 2 * large + 4 * small)),
            (std::vector<size_t>{1, 3, 5}));
  EXPECT_EQ(streaming(plan_stream(config, 2, 2 * large + 2 * small)),
            (std::vector<size_t>{1, 2, 3, 5, 6}));
}

TEST(PlanStream, SaysWhatIsMissing) {
  const ModelConfig config = of_widths({16, 16, 16});
  const auto one = static_cast<int64_t>(block_bytes(config, 0, 2));
  for (const int64_t budget : {2 * one - 1, int64_t{0}, int64_t{-5}}) {
    try {
      plan_stream(config, 2, budget);
      FAIL() << budget;
    } catch (const EnvironmentError& error) {
      EXPECT_EQ(error.code(), "out_of_memory");
      EXPECT_THAT(error.what(), HasSubstr("two slots of 12"));
    }
  }
}

TEST(StreamedWeights, TooLittleHostMemoryIsSaidBeforeAnythingIsLoaded) {
  const std::unique_ptr<Ops> ops = make_cpu_ops();
  const StreamPlan plan{{size_t{160} << 30, size_t{80} << 30}};
  try {
    WeightMemory memory(*ops, plan, int64_t{128} << 30);
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(error.code(), "host_memory");
    EXPECT_THAT(error.what(),
                HasSubstr("need 240.00 GiB of host memory; 128.00 GiB are available"));
  }
  EXPECT_EQ(ops->arena().report().live_total(), 0);
}

TEST(StreamedWeights, TheMachineTellsItsMemory) {
  EXPECT_GT(available_host_memory(), int64_t{1} << 20);
  EXPECT_LT(available_host_memory(), int64_t{1} << 50);
}

/// A source whose matrices are larger than planned would write beyond its slot.
TEST(StreamedWeights, MoreThanPlannedIsRefused) {
  const std::unique_ptr<Ops> ops = make_cpu_ops();
  WeightMemory memory(*ops, StreamPlan{{0, 1024}});
  memory.open(0);
  EXPECT_NE(memory.allocate(4096, Category::kWeights, "resident"), nullptr);
  memory.close();
  memory.open(1);
  EXPECT_NE(memory.allocate(1000, Category::kWeights, "a"), nullptr);
  EXPECT_THROW(memory.allocate(1, Category::kWeights, "b"), std::logic_error);
}

}  // namespace
}  // namespace cbench::testing
