// Models with routed experts through the engine process: the same logits as in this process,
// packages whose plugin serves the experts, and pruned experts.
#include <cmath>

#include <gmock/gmock.h>

#include "engine/support.h"
#include "package/pack.h"
#include "runtime/support.h"

namespace cbench::testing {
namespace {

using ::testing::HasSubstr;

const std::vector<std::vector<int32_t>> kIds = {
    {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 60, 33}, {2, 7, 1}, {50, 20, 33, 45, 6}};

std::vector<float> local_logits(const std::string& dir) {
  Fixture fixture(dir, kSmall);
  std::vector<Piece> pieces;
  for (size_t i = 0; i < kIds.size(); ++i) pieces.push_back({static_cast<int32_t>(i), 0, kIds[i]});
  return run_packed(*fixture.model, pieces);
}

class RoutedEngine : public ::testing::TestWithParam<const char*> {};

TEST_P(RoutedEngine, GivesTheSameLogitsAsInProcess) {
  const TestPackage package(golden_dir(GetParam()));
  Engine engine(engine_options(package));
  EXPECT_EQ(engine_logits(engine, kIds), local_logits(golden_dir(GetParam())));
  EXPECT_EQ(engine.memory().unexplained(), 0);
  engine.close();
}

/// Logits of a package that `cbench pack` makes of a fixture.
std::vector<float> packed_logits(const std::string& dir, PackPlugin plugin, int bits) {
  const TempDir made("cbench-test-packed");
  const std::string path = made.path() + "/package";
  PackChoice choice;
  choice.weights = {.bits = bits, .group = 8};
  choice.plugin = plugin;
  const PackReport report = pack_checkpoint(dir, "", choice, path);
  EXPECT_GT(report.quantised, 0);
  EXPECT_TRUE(report.skipped.empty());
  EXPECT_NEAR(static_cast<double>(packed_bytes(dir, choice)), static_cast<double>(report.bytes),
              0.05 * static_cast<double>(report.bytes));
  const Package opened = Package::open(path);
  for (const Tensor& tensor : opened.tensors().tensors()) {
    EXPECT_EQ(tensor.name.find("visual"), std::string::npos);  // never read
  }
  for (const auto& [name, format] : opened.manifest().matrices) {
    EXPECT_THAT(name, HasSubstr("experts"));  // the other matrices of a fixture are too small
  }
  PluginBuildOptions build;
  build.box = test_box();
  EngineOptions options;
  options.package = path;
  options.plugin = build_plugin(path, opened.manifest(), made.path() + "/build", build);
  options.config = read_file(dir + "/config.json");
  options.program = CBENCH_BINARY_DIR "/cbench";
  options.box = test_box();
  options.capacity = kSmall;
  Engine engine(options);
  const auto logits = engine_logits(engine, kIds);
  EXPECT_EQ(engine.memory().unexplained(), 0);
  engine.close();
  return logits;
}

TEST_P(RoutedEngine, APackedModelIsClose) {
  const std::string dir = golden_dir(GetParam());
  const auto exact = local_logits(dir);
  const auto eight = packed_logits(dir, PackPlugin::kStarter, 8);
  const auto four = packed_logits(dir, PackPlugin::kFast, 4);
  EXPECT_LT(relative_error(eight, exact), 0.05);
  EXPECT_GT(relative_error(eight, exact), 1e-5);
  EXPECT_GT(relative_error(four, exact), 3 * relative_error(eight, exact));
}

// Stacked, and one by one; gated and not.
INSTANTIATE_TEST_SUITE_P(All, RoutedEngine,
                         ::testing::Values("qwen3_5_moe", "qwen3_5_moe_multimodal", "gemma4_moe",
                                           "nemotron_h", "nemotron_h_multimodal"));

TEST(PackedExperts, StacksThatAreNoneStayAsTheyAre) {
  const TempDir dir("cbench-test-odd");
  const auto tensor = [](const char* name, std::vector<int64_t> shape, std::string_view bytes) {
    Tensor out;
    out.name = name;
    out.dtype = DType::kBF16;
    out.shape = std::move(shape);
    out.bytes = bytes;
    return out;
  };
  const std::string bytes(128, '\0');
  const std::vector<Tensor> tensors = {
      tensor("model.layers.0.mlp.experts.9223372036854775807.up_proj.weight", {8, 8}, bytes),
      tensor("model.layers.1.mlp.experts.1.up_proj.weight", {8, 8}, bytes),
      tensor("model.layers.2.mlp.experts.down_proj", {2, 8, 0}, "")};
  write_safetensors(dir.path() + "/model.safetensors", tensors);
  PackChoice choice;
  choice.weights = {.bits = 8, .group = 8};
  EXPECT_GT(packed_bytes(dir.path(), choice), 0);
  const PackReport report = pack_checkpoint(dir.path(), "", choice, dir.path() + "/package");
  EXPECT_EQ(report.quantised, 0);
  EXPECT_EQ(report.kept, 3);
}

/// A package that keeps three experts of layer 1.
TestPackage pruned() {
  TestPackage package(golden_dir("qwen3_5_moe"));
  package.write_manifest({{"graph", {{"experts", {{"1", {0, 2, 5}}}}}}});
  package.change_tensors([](TestPackage::Tensors& tensors) {
    for (const char* name : {"gate_up_proj", "down_proj"}) {
      auto& [tensor, bytes] = tensors["model.layers.1.mlp.experts." + std::string(name)];
      const size_t size = bytes.size() / 6;
      bytes = bytes.substr(0, size) + bytes.substr(2 * size, size) + bytes.substr(5 * size);
      tensor.shape[0] = 3;
    }
  });
  return package;
}

TEST(PrunedExperts, RunAndTakeLess) {
  const TestPackage package = pruned();
  const TestPackage whole(golden_dir("qwen3_5_moe"));
  Engine small(engine_options(package)), large(engine_options(whole));
  const auto logits = engine_logits(small, kIds);
  const double change = relative_error(logits, engine_logits(large, kIds));
  EXPECT_GT(change, 1e-4);
  for (const float value : logits) ASSERT_TRUE(std::isfinite(value));
  // Three experts of three matrices 16 x 32 each, BF16, and their router rows, fp32; allocations
  // are rounded up to 256 bytes.
  const int64_t saved = large.memory().arena.model_storage() - small.memory().arena.model_storage();
  EXPECT_NEAR(static_cast<double>(saved), 3 * 3 * 16 * 32 * 2 + 3 * 32 * 4, 256);
  small.close();
  large.close();
}

TEST(PrunedExperts, AreRefusedWhereTheyDoNotFit) {
  struct Case {
    Json graph;
    const char* code;
    const char* says;
  };
  const Case cases[] = {
      {{{"experts", {{"1", {0, 6}}}}}, "graph", "expert 6"},
      {{{"experts", {{"1", {3}}}}}, "graph", "chooses 2"},
      {{{"experts", {{"9", {0, 1}}}}}, "graph", "layer 9"},
      {{{"experts", {{"1", {0, 2, 4}}}}}, "shape", "experts.gate_up_proj"},
      {{{"low_rank", {{"model.layers.1.mlp.experts.down_proj", 4}}}}, "graph", "not factored"},
      {{{"mlp_width", {{"1", 25}}}}, "graph", "25"}};
  for (const Case& each : cases) {
    TestPackage package(golden_dir("qwen3_5_moe"));
    package.write_manifest({{"graph", each.graph}});
    const auto error = caught([&] { Engine engine(engine_options(package)); });
    EXPECT_EQ(error.code, each.code) << error.message;
    EXPECT_THAT(error.message, HasSubstr(each.says));
    EXPECT_EQ(error.exit, Exit::kGateFailed);
  }
}

}  // namespace
}  // namespace cbench::testing
