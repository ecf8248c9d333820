// The engine as a real process: the same logits as in this process, overrides, and packages that do
// not fit.
#include <cstring>

#include <gmock/gmock.h>

#include "engine/support.h"
#include "model/config.h"
#include "package/rtn.h"
#include "runtime/support.h"
#include "runtime/weight_memory.h"

namespace cbench::testing {
namespace {

using ::testing::HasSubstr;

const std::vector<std::vector<int32_t>> kIds = {
    {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 97, 93}, {2, 7, 1}, {100, 120, 33, 45, 6}};

/// kIds for models of a smaller vocabulary.
std::vector<std::vector<int32_t>> ids_below(int64_t vocab) {
  std::vector<std::vector<int32_t>> ids = kIds;
  for (auto& sequence : ids) {
    for (int32_t& id : sequence) id %= static_cast<int32_t>(vocab);
  }
  return ids;
}

/// The same sequences through a model in this process.
std::vector<float> local_logits(const std::string& dir) {
  Fixture fixture(dir, kSmall);
  const auto ids = ids_below(fixture.model->config().vocab);
  std::vector<Piece> pieces;
  for (size_t i = 0; i < ids.size(); ++i) pieces.push_back({static_cast<int32_t>(i), 0, ids[i]});
  return run_packed(*fixture.model, pieces);
}

class GoldenEngine : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenEngine, GivesTheSameLogitsAsInProcess) {
  const TestPackage package(golden_dir(GetParam()));
  Engine engine(engine_options(package));
  const auto there = engine_logits(engine, ids_below(engine.vocab()));
  const auto here = local_logits(golden_dir(GetParam()));
  ASSERT_EQ(there.size(), here.size());
  EXPECT_EQ(0, std::memcmp(there.data(), here.data(), here.size() * sizeof(float)));
  expect_as_planned(engine.memory());
  engine.close();
}

INSTANTIATE_TEST_SUITE_P(All, GoldenEngine,
                         ::testing::Values("qwen3_5_tied", "qwen3_5_untied", "qwen3_5_shapes",
                                           "llama_tied", "llama_untied_bias", "qwen3_dense",
                                           "qwen3_5_moe", "gemma4_moe", "nemotron_h"));

/// Memory as an engine reports it: 1 MiB of weights, 100 of caches; from outside, both.
EngineMemory reported() {
  constexpr int64_t kMiB = 1 << 20;
  EngineMemory memory;
  memory.arena.live[static_cast<size_t>(Category::kWeights)] = kMiB;
  memory.arena.live[static_cast<size_t>(Category::kKv)] = 100 * kMiB;
  memory.planned[static_cast<size_t>(Category::kKv)] = 100 * kMiB;
  memory.baseline = 7 * kMiB;
  memory.outside = memory.baseline + 101 * kMiB;
  return memory;
}

TEST(EngineMemory, WhatWasPlannedDoesNotCount) {
  const EngineMemory memory = reported();
  EXPECT_EQ(memory.unexplained(), 0);
  EXPECT_EQ(memory.resident(), 1 << 20);
}

TEST(EngineMemory, WeightsCalledWorkspaceCount) {
  EngineMemory memory = reported();
  memory.outside += 50 << 20;
  memory.arena.live[static_cast<size_t>(Category::kWorkspace)] = 50 << 20;
  EXPECT_GT(memory.resident(), 48 << 20);
  EXPECT_LE(memory.resident(), 51 << 20);
}

TEST(EngineMemory, CachesBeyondThePlanCount) {
  EngineMemory memory = reported();
  memory.outside += 50 << 20;
  memory.arena.live[static_cast<size_t>(Category::kKv)] += 50 << 20;
  EXPECT_GT(memory.resident(), 48 << 20);
}

TEST(EngineMemory, PageTablesOfStreamedWeightsAreExplained) {
  EngineMemory memory = reported();
  memory.streamed = int64_t{20} << 30;
  memory.outside = memory.baseline + memory.streamed;
  memory.device = DeviceUse{.engine = int64_t{101} << 20, .others = 0, .used = int64_t{141} << 20};
  EXPECT_EQ(memory.unexplained(), 0) << memory.explain();
  memory.device->used += 64 << 20;
  EXPECT_EQ(memory.unexplained(), int64_t{48} << 20);  // beyond the allowance of 16
}

TEST(EngineMemory, OnAGpuTheSameHoldsForDeviceMemory) {
  EngineMemory memory = reported();
  memory.outside = memory.baseline;
  memory.device_baseline.engine = 500 << 20;
  memory.device = DeviceUse{};
  memory.device->engine = memory.device_baseline.engine + (int64_t{101} << 20);
  EXPECT_EQ(memory.resident(), 1 << 20);
  memory.device->engine += 200 << 20;
  memory.arena.live[static_cast<size_t>(Category::kWorkspace)] = 200 << 20;
  EXPECT_GT(memory.resident(), 180 << 20);
}

TEST(EngineMemory, WeightsThatStreamAreExplainedAndCount) {
  EngineMemory memory = reported();
  memory.streamed = int64_t{500} << 20;
  memory.outside += memory.streamed;
  EXPECT_EQ(memory.unexplained(), 0);
  EXPECT_EQ(memory.resident(), int64_t{501} << 20);
  memory.outside += int64_t{50} << 20;
  EXPECT_GT(memory.unexplained(), int64_t{48} << 20);
}

class StreamedEngine : public ::testing::TestWithParam<const char*> {};

TEST_P(StreamedEngine, GivesTheSameLogitsAndExplainsItsMemory) {
  const TestPackage package(golden_dir(GetParam()));
  const ModelConfig config = parse_model_config(package.config(), "config");
  size_t largest = 0;
  for (size_t i = 0; i < config.blocks.size(); ++i) {
    largest = std::max(largest, block_bytes(config, i, sizeof(float)));
  }
  EngineOptions options = engine_options(package);
  options.stream_budget = static_cast<int64_t>(StreamPlan::kSlots * largest);
  Engine engine(options);
  EXPECT_TRUE(engine.streams());
  const auto there = engine_logits(engine, ids_below(engine.vocab()));
  const auto here = local_logits(golden_dir(GetParam()));
  ASSERT_EQ(there.size(), here.size());
  EXPECT_EQ(0, std::memcmp(there.data(), here.data(), here.size() * sizeof(float)));
  const EngineMemory memory = engine.memory();
  expect_as_planned(memory);
  EXPECT_GT(memory.streamed, 0);
  EXPECT_EQ(memory.resident(), memory.arena.model_storage() + memory.streamed);
  engine.close();
}

INSTANTIATE_TEST_SUITE_P(Some, StreamedEngine,
                         ::testing::Values("qwen3_5_untied", "qwen3_5_moe", "gemma4_moe",
                                           "nemotron_h"));

TEST(Engine, ABudgetBelowTheSlotsIsNamed) {
  const TestPackage package(golden_dir("qwen3_5_moe"));
  EngineOptions options = engine_options(package);
  options.stream_budget = 1;
  const Caught error = caught([&] { Engine engine(options); });
  EXPECT_EQ(error.code, "engine_out_of_memory");
  EXPECT_THAT(error.message, HasSubstr("slots"));
}

TEST(Engine, WithAPluginNothingStreams) {
  const std::string source = plugin_fixture("hostile");
  const TestPackage package(golden_dir("qwen3_5_untied"), Json::object(), source);
  EngineOptions options = engine_options(package, built_plugin(source));
  options.stream_budget = 1;
  Engine engine(options);
  EXPECT_FALSE(engine.streams());
  engine.close();
}

TEST(EngineMemory, RoundingIsNotBelievedByWhatNothingBacks) {
  EngineMemory memory = reported();
  memory.outside = memory.baseline;
  memory.device_baseline.engine = 500 << 20;
  memory.device = DeviceUse{};
  memory.device->engine = memory.device_baseline.engine + (int64_t{4101} << 20);
  memory.arena.live[static_cast<size_t>(Category::kKv)] = int64_t{1} << 49;
  memory.arena.padding = int64_t{1} << 49;
  EXPECT_GT(memory.resident(), int64_t{3900} << 20);
}

TEST(Engine, ChecksWhatItWasAskedFor) {
  const TestPackage package(golden_dir("llama_tied"));
  Engine engine(engine_options(package));
  EXPECT_EQ(engine.vocab(), 128);
  // Generation is greedy decoding of the same logits.
  const std::vector<int32_t> prompt = {5, 6, 7, 8};
  const EngineSequence sequence{0, 0, prompt, 3};
  std::vector<int32_t> ids;
  engine.forward({&sequence, 1}, [&](const float* rows, int64_t, int64_t n) {
    ASSERT_EQ(n, 1);
    ids.push_back(argmax({rows, 128}));
  });
  engine.generate(0, ids[0], 4, 10, [&](int32_t id) { ids.push_back(id); });
  ASSERT_EQ(ids.size(), 11u);
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), ids.begin(), ids.end() - 1);
  const auto logits = engine_logits(engine, {all});
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(argmax({logits.data() + (prompt.size() - 1 + i) * 128, 128}), ids[i]) << i;
  }
  const EngineMemory memory = engine.memory();
  EXPECT_GT(memory.arena.model_storage(), 200'000);
  expect_as_planned(memory);
  EXPECT_LT(memory.resident(), 600'000);
  engine.close();
  EXPECT_EQ(processes_with(package.path()), 0);
}

TEST(Engine, ABatchThatDoesNotFitIsOurMistake) {
  const TestPackage package(golden_dir("llama_tied"));
  Engine engine(engine_options(package));
  const auto error = caught([&] { engine_logits(engine, {std::vector<int32_t>(300, 1)}); });
  EXPECT_EQ(error.code, "batch");
}

TEST(Engine, ATooShortDeadlineIsATimeLimit) {
  const TestPackage package(golden_dir("llama_tied"));
  EngineOptions options = engine_options(package);
  options.deadline = 1;  // since the machine's start: long ago
  const auto error = caught([&] { Engine engine(options); });
  EXPECT_EQ(error.code, "time_limit");
  EXPECT_EQ(error.exit, Exit::kInvalid);
}

TEST(Engine, AProgramThatIsNoEngineIsOurMistake) {
  const TestPackage package(golden_dir("llama_tied"));
  EngineOptions options = engine_options(package);
  options.program = "/bin/true";
  const auto error = caught([&] { Engine engine(options); });
  EXPECT_EQ(error.code, "engine_exited");
  EXPECT_EQ(error.exit, Exit::kInvalid);
}

/// Packages that are refused while they are loaded, before anything runs.
struct BadPackage {
  const char* name;
  std::function<void(TestPackage&)> change;
  const char* code;
  const char* says;
};
void PrintTo(const BadPackage& bad, std::ostream* out) { *out << bad.name; }
class Refused : public ::testing::TestWithParam<BadPackage> {};

TEST_P(Refused, WithANamedCode) {
  TestPackage package(golden_dir("llama_tied"));
  GetParam().change(package);
  const auto error = caught([&] { Engine engine(engine_options(package)); });
  EXPECT_EQ(error.code, GetParam().code) << error.message;
  EXPECT_THAT(error.message, HasSubstr(GetParam().says));
  EXPECT_EQ(error.exit, Exit::kGateFailed);
}

const std::string kUp = "model.layers.1.mlp.up_proj.weight";
BadPackage graph(const char* name, Json overrides, const char* code, const char* says) {
  return {name, [=](TestPackage& p) { p.write_manifest({{"graph", overrides}}); }, code, says};
}

INSTANTIATE_TEST_SUITE_P(
    Packages, Refused,
    ::testing::Values(
        BadPackage{"missing_tensor",
                   [](TestPackage& p) {
                     p.change_tensors([](TestPackage::Tensors& tensors) { tensors.erase(kUp); });
                   },
                   "missing_tensor", "up_proj"},
        BadPackage{"missing_norm",
                   [](TestPackage& p) {
                     p.change_tensors(
                         [](TestPackage::Tensors& tensors) { tensors.erase("model.norm.weight"); });
                   },
                   "missing_tensor", "model.norm.weight"},
        BadPackage{"wrong_shape",
                   [](TestPackage& p) {
                     p.change_tensors([](TestPackage::Tensors& tensors) {
                       std::swap(tensors[kUp].first.shape[0], tensors[kUp].first.shape[1]);
                     });
                   },
                   "shape", "up_proj"},
        BadPackage{"wrong_dtype",
                   [](TestPackage& p) {
                     p.change_tensors([](TestPackage::Tensors& tensors) {
                       tensors[kUp].first.dtype = DType::kI16;
                     });
                   },
                   "dtype", "up_proj"},
        graph("layer_past_the_end", {{"layers", {0, 1, 9}}}, "graph", "9"),
        graph("width_of_a_dropped_layer", {{"layers", {0, 1}}, {"mlp_width", {{"3", 8}}}},
              "conflict", "3"),
        graph("width_too_large", {{"mlp_width", {{"1", 97}}}}, "graph", "97"),
        graph("width_without_tensors", {{"mlp_width", {{"1", 32}}}}, "shape", "layers.1.mlp"),
        graph("rank_of_nothing", {{"low_rank", {{"model.layers.7.mlp.up_proj.weight", 2}}}},
              "unknown_matrix", "layers.7"),
        graph("rank_beyond_the_matrix", {{"low_rank", {{kUp, 65}}}}, "graph", "64"),
        graph("rank_without_factors", {{"low_rank", {{kUp, 8}}}}, "missing_tensor", ".A"),
        graph("experts_of_a_dense_model", {{"experts", {{"1", {0, 1}}}}}, "graph", "experts")),
    [](const auto& p) { return std::string(p.param.name); });

TEST(Engine, DroppedLayersAndNarrowerMlp) {
  const std::string dir = golden_dir("llama_tied");
  TestPackage package(dir);
  package.write_manifest({{"graph", {{"layers", {0, 1, 3}}, {"mlp_width", {{"1", 32}}}}}});
  package.change_tensors([](TestPackage::Tensors& t) {
    std::erase_if(t, [](const auto& e) { return e.first.starts_with("model.layers.2."); });
    for (const char* name : {"gate_proj", "up_proj"}) {
      auto& [tensor, bytes] = t["model.layers.1.mlp." + std::string(name) + ".weight"];
      tensor.shape[0] = 32;
      bytes.resize(static_cast<size_t>(32 * 64 * 2));
    }
    auto& [down, bytes] = t["model.layers.1.mlp.down_proj.weight"];
    std::string narrow;
    for (size_t r = 0; r < 64; ++r) narrow += bytes.substr(r * 96 * 2, 32 * 2);
    down.shape[1] = 32;
    bytes = narrow;
  });
  Engine engine(engine_options(package));
  const auto pruned = engine_logits(engine, kIds);
  for (const float value : pruned) ASSERT_TRUE(std::isfinite(value));
  EXPECT_GT(relative_error(pruned, local_logits(dir)), 1e-4);
  engine.close();
}

TEST(Engine, LowRankFactors) {
  const std::string dir = golden_dir("llama_tied");
  TestPackage package(dir);
  // W = A B with B the identity: the same matrix.
  package.write_manifest({{"graph", {{"low_rank", {{kUp, 64}}}}}});
  package.change_tensors([](TestPackage::Tensors& t) {
    t[kUp + ".A"] = t[kUp];
    t.erase(kUp);
    std::string identity(static_cast<size_t>(64 * 64 * 2), '\0');
    for (size_t i = 0; i < 64; ++i) {
      const uint16_t one = 0x3f80;
      std::memcpy(identity.data() + (i * 64 + i) * 2, &one, 2);
    }
    Tensor b;
    b.dtype = DType::kBF16;
    b.shape = {64, 64};
    t[kUp + ".B"] = {b, identity};
  });
  Engine engine(engine_options(package));
  EXPECT_LT(relative_error(engine_logits(engine, kIds), local_logits(dir)), 1e-5);
  expect_as_planned(engine.memory());
  engine.close();
}

/// A package of the fixture whose matrices are rounded to `bits`, for the examples' plugins.
void quantise(TestPackage& package, int bits, const std::string& example) {
  const int64_t group = 32;
  Json matrices = Json::object();
  package.change_tensors([&](TestPackage::Tensors& t) {
    for (const MatrixShape& m : model_matrices(parse_model_config(package.config(), "config"))) {
      if (m.cols % group != 0) continue;
      const std::string bytes = t[m.name].second;
      std::vector<uint16_t> weights(bytes.size() / 2);
      std::memcpy(weights.data(), bytes.data(), bytes.size());
      const RtnMatrix q = quantise_rtn(weights, m.rows, m.cols, {.bits = bits, .group = group});
      const auto add = [&](const char* suffix, DType dtype, int64_t cols, const std::string& data) {
        Tensor tensor;
        tensor.dtype = dtype;
        tensor.shape = {m.rows, cols};
        t[m.name + suffix] = {tensor, data};
      };
      t.erase(m.name);
      add(".q", DType::kU8, rtn_row_bytes(m.cols, bits), q.codes);
      add(".scale", DType::kBF16, m.cols / group, q.scale);
      add(".min", DType::kBF16, m.cols / group, q.min);
      matrices[m.name] = "rtn";
    }
  });
  make_directories(package.path() + "/src");
  fs::copy_file(std::string(CBENCH_SOURCE_DIR "/examples/") + example + "/src/plugin.cpp",
                package.path() + "/src/plugin.cpp");
  package.write_manifest(
      {{"formats", {{"rtn", {{"bits", bits}, {"group", group}}}}}, {"matrices", matrices}}, true);
}

std::vector<float> quantised_logits(const std::string& dir, int bits, const std::string& example,
                                    bool stepwise) {
  TestPackage package(dir);
  quantise(package, bits, example);
  const Package opened = Package::open(package.path());
  const TempDir out("cbench-test-build");
  PluginBuildOptions build;
  build.box = test_box();
  const std::string plugin = build_plugin(package.path(), opened.manifest(), out.path(), build);
  Engine engine(engine_options(package, plugin));
  std::vector<float> logits;
  if (stepwise) {
    for (size_t t = 0; t < kIds[0].size(); ++t) {
      const EngineSequence one{0, static_cast<int32_t>(t), {&kIds[0][t], 1}, 0};
      engine.forward({&one, 1}, [&](const float* rows, int64_t, int64_t) {
        logits.insert(logits.end(), rows, rows + engine.vocab());
      });
    }
  } else {
    logits = engine_logits(engine, kIds);
  }
  expect_as_planned(engine.memory());
  engine.close();
  return logits;
}

TEST(Examples, EightBitsAreCloseAndBothPluginsAgree) {
  for (const char* model : {"llama_tied", "qwen3_dense"}) {
    const auto exact = local_logits(golden_dir(model));
    const auto starter = quantised_logits(golden_dir(model), 8, "starter", false);
    const auto fast = quantised_logits(golden_dir(model), 8, "fast-matmul", false);
    EXPECT_LT(relative_error(starter, exact), 0.05) << model;
    EXPECT_GT(relative_error(starter, exact), 1e-5) << model;
    EXPECT_LT(relative_error(fast, starter), 0.01) << model;
    const auto starter_steps = quantised_logits(golden_dir(model), 8, "starter", true);
    const auto fast_steps = quantised_logits(golden_dir(model), 8, "fast-matmul", true);
    EXPECT_LT(relative_error(fast_steps, starter_steps), 0.01) << model;
  }
}

TEST(Examples, FourBitsAreFurtherAway) {
  const auto exact = local_logits(golden_dir("llama_tied"));
  const auto eight = quantised_logits(golden_dir("llama_tied"), 8, "starter", false);
  const auto four = quantised_logits(golden_dir("llama_tied"), 4, "starter", false);
  EXPECT_GT(relative_error(four, exact), 4 * relative_error(eight, exact));
}

}  // namespace
}  // namespace cbench::testing
