// The model's borders: hostile weights, wrong batches, pruning overrides, arena accounting.
#include "runtime/model.h"

#include <cstring>
#include <list>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/bench.h"
#include "runtime/support.h"
#include "runtime/synthetic_source.h"
#include "util/error.h"
#include "util/json.h"

namespace cbench::testing {
namespace {

constexpr Capacity kCapacity = {
    .tokens = 64, .sequences = 2, .slots = 2, .max_length = 64, .logits_rows = 64};

std::string golden(const char* folder) { return std::string(CBENCH_FIXTURES "/golden/") + folder; }

/// A copy of a golden checkpoint whose tensors a test may change before it is opened.
class EditedCheckpoint {
 public:
  explicit EditedCheckpoint(const char* folder)
      : original_(TensorStore::open_checkpoint(golden(folder))),
        config_(parse_model_config(read_file(golden(folder) + "/config.json"), "config.json")) {
    for (const Tensor& tensor : original_.tensors()) tensors_[tensor.name] = tensor;
  }
  std::map<std::string, Tensor>& tensors() { return tensors_; }
  ModelConfig& config() { return config_; }
  Tensor& at(const std::string& name) { return tensors_.at(name); }
  /// Bytes that live as long as this.
  std::string_view keep(std::string bytes) { return kept_.emplace_back(std::move(bytes)); }

  /// Opens the edited tensors and binds a model to them.
  Model& bind() {
    std::vector<Tensor> list;
    for (const auto& [name, tensor] : tensors_) list.push_back(tensor);
    write_safetensors(dir_.path() + "/model.safetensors", list);
    store_ = std::make_unique<TensorStore>(TensorStore::open_checkpoint(dir_.path()));
    source_ = std::make_unique<CheckpointSource>(*ops_, *store_);
    model_ = std::make_unique<Model>(*ops_, config_, *source_, kCapacity);
    return *model_;
  }
  /// The error code of bind(), or "" if it succeeds.
  std::string refusal() {
    try {
      bind();
      return "";
    } catch (const Error& error) {
      message_ = error.what();
      return error.code();
    }
  }
  const std::string& message() const { return message_; }

 private:
  TensorStore original_;
  ModelConfig config_;
  std::map<std::string, Tensor> tensors_;
  std::list<std::string> kept_;
  TempDir dir_;
  std::unique_ptr<Ops> ops_ = make_cpu_ops();
  std::unique_ptr<TensorStore> store_;
  std::unique_ptr<CheckpointSource> source_;
  std::unique_ptr<Model> model_;
  std::string message_;
};

TEST(ModelWeights, EveryTensorIsRequired) {
  for (const char* folder : {"qwen3_5_untied", "llama_untied_bias", "qwen3_dense", "qwen3_5_moe",
                             "gemma4_moe", "nemotron_h", "nemotron_h_multimodal"}) {
    EditedCheckpoint whole(folder);
    const bool layers_differ = std::string_view(folder).starts_with("nemotron");
    for (const auto& [name, tensor] : whole.tensors()) {
      if (!layers_differ && name.find("layers.1") == std::string::npos &&
          name.find("layers.3") == std::string::npos && name.find("layers") != std::string::npos) {
        continue;  // two layers of each kind are enough
      }
      EditedCheckpoint edited(folder);
      edited.tensors().erase(name);
      EXPECT_EQ(edited.refusal(), "missing_tensor") << name;
      EXPECT_THAT(edited.message(), ::testing::HasSubstr(name));
    }
  }
}

TEST(ModelWeights, ShapesAndTypesMustFit) {
  for (const char* name :
       {"model.embed_tokens.weight", "model.layers.0.linear_attn.conv1d.weight",
        "model.layers.0.linear_attn.A_log", "model.layers.0.linear_attn.in_proj_b.weight",
        "model.layers.3.self_attn.q_proj.weight", "model.layers.3.mlp.up_proj.weight",
        "model.norm.weight", "lm_head.weight"}) {
    EditedCheckpoint shrunk("qwen3_5_untied");
    Tensor& tensor = shrunk.at(name);
    const int64_t row = tensor.elements() / tensor.shape[0];
    --tensor.shape[0];
    tensor.bytes.remove_suffix(static_cast<size_t>(2 * row));
    EXPECT_EQ(shrunk.refusal(), "shape") << name;
    EXPECT_THAT(shrunk.message(), ::testing::HasSubstr(name));

    EditedCheckpoint flat("qwen3_5_untied");
    flat.at(name).shape = {flat.at(name).elements(), 1, 1, 1};
    EXPECT_EQ(flat.refusal(), "shape") << name;

    EditedCheckpoint integers("qwen3_5_untied");
    integers.at(name).dtype = DType::kI16;
    EXPECT_EQ(integers.refusal(), "dtype") << name;
  }
}

TEST(ModelWeights, NanStaysNanAndInBounds) {
  for (const char* folder :
       {"qwen3_5_tied", "llama_tied", "qwen3_5_moe", "gemma4_moe", "nemotron_h"}) {
    EditedCheckpoint edited(folder);
    for (auto& [name, tensor] : edited.tensors()) {
      std::string bytes;
      const std::string nan(tensor.dtype == DType::kF32 ? std::string("\0\0\xc0\x7f", 4)
                                                        : std::string("\xc0\x7f"));
      while (bytes.size() < tensor.bytes.size()) bytes += nan;
      tensor.bytes = edited.keep(bytes);
    }
    Model& model = edited.bind();
    for (const float value : run_packed(model, {{0, 0, std::vector<int32_t>(40, 3)}})) {
      ASSERT_TRUE(std::isnan(value));
    }
    model.generate(0, 1, 40, 3, [](int32_t id) {
      EXPECT_EQ(id, 0);
      return true;
    });
  }
}

TEST(ModelWeights, OtherFloatTypesGiveTheSameNumbers) {
  EditedCheckpoint plain("qwen3_5_untied"), wide("qwen3_5_untied"), mixed("qwen3_5_untied");
  int index = 0;
  for (auto* edited : {&wide, &mixed}) {
    for (auto& [name, tensor] : edited->tensors()) {
      if (edited == &mixed && index++ % 2) continue;
      const std::vector<float> values = tensor_floats(tensor);
      tensor.bytes = edited->keep(
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
      tensor.dtype = DType::kF32;
    }
  }
  for (const size_t count : {size_t{2}, size_t{40}}) {
    const std::vector<Piece> pieces = {{0, 0, std::vector<int32_t>(count, 3)}};
    const auto expected = run_packed(plain.bind(), pieces);
    EXPECT_LT(relative_error(run_packed(wide.bind(), pieces), expected), 1e-5);
    EXPECT_LT(relative_error(run_packed(mixed.bind(), pieces), expected), 1e-5);
  }
}

TEST(ModelBatch, RefusesWhatDoesNotFit) {
  Fixture fixture(golden("qwen3_5_tied"), kCapacity);
  Model& model = *fixture.model;
  const auto refused = [&](std::vector<int32_t> ids, std::vector<Span> spans) {
    try {
      model.forward({ids, spans});
      return std::string("accepted");
    } catch (const UsageError& error) {
      return error.code();
    }
  };
  EXPECT_EQ(refused({}, {}), "batch");
  EXPECT_EQ(refused({1}, {}), "batch");
  EXPECT_EQ(refused({1, 2}, {{0, 0, 0, 1}}), "batch");                // a row without a span
  EXPECT_EQ(refused({1, 2}, {{0, 0, 0, 1}, {1, 0, 0, 1}}), "batch");  // overlapping
  EXPECT_EQ(refused({1, 2}, {{0, 0, 0, 3}}), "batch");                // beyond the rows
  EXPECT_EQ(refused({1, 2}, {{0, 0, 0, 2}, {1, 0, 2, 0}}), "batch");  // empty span
  EXPECT_EQ(refused({1, 2}, {{0, 0, 0, 1}, {0, 0, 1, 1}}), "batch");  // a slot twice
  EXPECT_EQ(refused({1}, {{2, 0, 0, 1}}), "batch");
  EXPECT_EQ(refused({1}, {{-1, 0, 0, 1}}), "batch");
  EXPECT_EQ(refused({128}, {{0, 0, 0, 1}}), "batch");
  EXPECT_EQ(refused({-1}, {{0, 0, 0, 1}}), "batch");
  EXPECT_EQ(refused({1}, {{0, 1, 0, 1}}), "batch");  // nothing to continue
  EXPECT_EQ(refused({1}, {{0, -1, 0, 1}}), "batch");
  EXPECT_EQ(refused(std::vector<int32_t>(65, 1), {{0, 0, 0, 65}}), "batch");
  EXPECT_EQ(refused({1, 2}, {{0, 0, 0, INT32_MAX}}), "batch");

  float logits[128];
  const int32_t row = 0;
  EXPECT_THROW(model.logits({&row, 1}, logits), UsageError);  // no forward yet
  EXPECT_EQ(refused(std::vector<int32_t>(64, 1), {{0, 0, 0, 64}}), "accepted");
  EXPECT_EQ(refused({1}, {{0, 64, 0, 1}}), "batch");  // the slot is full
  EXPECT_EQ(refused({1}, {{0, 63, 0, 1}}), "batch");  // going back is impossible
  const int32_t beyond = 64;
  EXPECT_THROW(model.logits({&beyond, 1}, logits), UsageError);
  EXPECT_THROW(model.generate(0, 1, 64, 1, [](int32_t) { return true; }), UsageError);
  EXPECT_THROW(model.generate(1, 1, 0, 65, [](int32_t) { return true; }), UsageError);
  EXPECT_EQ(refused({1}, {{0, 0, 0, 1}}), "accepted");  // starting again is
  EXPECT_EQ(refused({1}, {{0, 1, 0, 1}}), "accepted");
}

/// Hides the effect of a block: its outputs become zero.
void silence(EditedCheckpoint& edited, const std::string& prefix) {
  for (auto& [name, tensor] : edited.tensors()) {
    if (name == prefix + "mlp.down_proj.weight" || name == prefix + "self_attn.o_proj.weight" ||
        name == prefix + "linear_attn.out_proj.weight") {
      tensor.bytes = edited.keep(std::string(tensor.bytes.size(), '\0'));
    }
  }
}

TEST(ModelOverridesRun, DroppedLayersEqualSilencedOnes) {
  EditedCheckpoint silenced("qwen3_5_tied"), dropped("qwen3_5_tied");
  silence(silenced, "model.layers.1.");
  dropped.config() = apply_overrides(dropped.config(), {{0, 2, 3}, {}, {}});
  for (auto it = dropped.tensors().begin(); it != dropped.tensors().end();) {
    it = it->first.starts_with("model.layers.1.") ? dropped.tensors().erase(it) : std::next(it);
  }
  std::vector<int32_t> ids(40);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 128);
  EXPECT_EQ(run_packed(silenced.bind(), {{0, 0, ids}}), run_packed(dropped.bind(), {{0, 0, ids}}));
}

TEST(ModelOverridesRun, NarrowMlpsEqualZeroedColumns) {
  constexpr int64_t kWidth = 37;
  const std::string mlp = "model.layers.2.mlp.";
  EditedCheckpoint zeroed("qwen3_5_tied"), narrow("qwen3_5_tied");
  narrow.config() = apply_overrides(narrow.config(), {{}, {{2, kWidth}}, {}});
  const int64_t hidden = narrow.config().hidden;
  for (const char* part : {"gate_proj.weight", "up_proj.weight"}) {
    Tensor& tensor = narrow.at(mlp + part);
    tensor.shape[0] = kWidth;
    tensor.bytes = tensor.bytes.substr(0, static_cast<size_t>(kWidth * hidden * 2));
  }
  Tensor& down = narrow.at(mlp + "down_proj.weight");
  const auto full = static_cast<size_t>(down.shape[1] * 2);
  std::string cut, zero(zeroed.at(mlp + "down_proj.weight").bytes);
  for (size_t row = 0; row < static_cast<size_t>(hidden); ++row) {
    cut += down.bytes.substr(row * full, kWidth * 2);
    std::fill(zero.begin() + static_cast<ptrdiff_t>(row * full + kWidth * 2),
              zero.begin() + static_cast<ptrdiff_t>((row + 1) * full), '\0');
  }
  down.shape[1] = kWidth;
  down.bytes = narrow.keep(cut);
  zeroed.at(mlp + "down_proj.weight").bytes = zeroed.keep(zero);
  for (const size_t count : {size_t{3}, size_t{40}}) {
    const std::vector<Piece> pieces = {{1, 0, std::vector<int32_t>(count, 9)}};
    EXPECT_LT(relative_error(run_packed(narrow.bind(), pieces), run_packed(zeroed.bind(), pieces)),
              1e-5);
  }
}

TEST(ModelOverridesRun, DroppedBlocksOfOneEqualSilencedOnes) {
  // The last block of each kind: Mamba 2 (2), attention (3), experts (4), MLP (5) of MEM*E-.
  for (const int64_t layer : {2, 3, 4, 5}) {
    EditedCheckpoint silenced("nemotron_h"), dropped("nemotron_h");
    const std::string prefix = "backbone.layers." + std::to_string(layer) + ".";
    for (auto& [name, tensor] : silenced.tensors()) {
      const bool out = name.ends_with("out_proj.weight") || name.ends_with("o_proj.weight") ||
                       name.ends_with("down_proj.weight");
      if (name.starts_with(prefix) && out) {
        tensor.bytes = silenced.keep(std::string(tensor.bytes.size(), '\0'));
      }
    }
    std::vector<int64_t> kept;
    for (int64_t i = 0; i < 6; ++i) {
      if (i != layer) kept.push_back(i);
    }
    dropped.config() = apply_overrides(dropped.config(), {kept, {}, {}});
    const std::vector<Piece> pieces = {{0, 0, {5, 6, 7, 8, 9, 10, 11}}};
    EXPECT_LT(
        relative_error(run_packed(dropped.bind(), pieces), run_packed(silenced.bind(), pieces)),
        1e-6)
        << layer;
  }
}

/// The rows of `experts` out of a tensor whose first dimension counts experts.
void gather(EditedCheckpoint& edited, Tensor& tensor, const std::vector<int64_t>& experts) {
  const size_t size = tensor.bytes.size() / static_cast<size_t>(tensor.shape[0]);
  std::string bytes;
  for (const int64_t expert : experts) {
    bytes += tensor.bytes.substr(static_cast<size_t>(expert) * size, size);
  }
  tensor.shape[0] = static_cast<int64_t>(experts.size());
  tensor.bytes = edited.keep(bytes);
}

TEST(ModelOverridesRun, PrunedExpertsEqualAModelWithoutThem) {
  // The package keeps the router whole and stores only the kept experts; the other model is as if
  // the source had only these. Stacked and one by one, with bias, scales and shared experts.
  struct Case {
    const char* folder;
    int64_t layer;
    std::vector<int64_t> kept;
    std::vector<std::string> per_expert;  ///< small tensors with a row per expert
  };
  const Case cases[] = {
      {"qwen3_5_moe", 1, {0, 2, 5}, {"mlp.gate.weight"}},
      {"gemma4_moe", 2, {1, 3, 4}, {"router.proj.weight", "router.per_expert_scale"}},
      {"nemotron_h", 1, {1, 3, 4, 7}, {"mixer.gate.weight", "mixer.gate.e_score_correction_bias"}},
      {"nemotron_h_multimodal",
       2,
       {0, 1, 2, 3, 4, 5, 6, 7},
       {"mixer.gate.weight", "mixer.gate.e_score_correction_bias"}}};
  for (const Case& each : cases) {
    EditedCheckpoint pruned(each.folder), smaller(each.folder), whole(each.folder);
    pruned.config() = apply_overrides(pruned.config(), {{}, {}, {{each.layer, each.kept}}});
    BlockConfig& block = smaller.config().blocks[static_cast<size_t>(each.layer)];
    const std::string prefix = block.prefix;
    block.moe.experts = static_cast<int64_t>(each.kept.size());
    block.moe.kept.clear();
    for (int64_t i = 0; i < block.moe.experts; ++i) block.moe.kept.push_back(i);
    for (const std::string& name : {block.moe.in_name(), block.moe.down_name()}) {
      if (pruned.tensors().contains(name)) {
        gather(pruned, pruned.at(name), each.kept);
        gather(smaller, smaller.at(name), each.kept);
        continue;
      }
      const std::string stem = name.substr(0, name.rfind('.') + 1);
      const std::string word = name.substr(name.rfind('.')) + ".weight";
      for (size_t i = 0; i < each.kept.size(); ++i) {
        smaller.at(stem + std::to_string(i) + word) =
            whole.at(stem + std::to_string(each.kept[i]) + word);
        smaller.at(stem + std::to_string(i) + word).name = stem + std::to_string(i) + word;
      }
    }
    for (const std::string& name : each.per_expert) {
      gather(smaller, smaller.at(prefix + name), each.kept);
    }
    std::vector<int32_t> ids(40);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 60);
    const auto logits = run_packed(pruned.bind(), {{0, 0, ids}});
    EXPECT_EQ(logits, run_packed(smaller.bind(), {{0, 0, ids}})) << each.folder;
    const double change = relative_error(logits, run_packed(whole.bind(), {{0, 0, ids}}));
    EXPECT_EQ(change > 1e-4, each.kept.size() < 8) << each.folder;
  }
}

TEST(ModelOverridesRun, StackedExpertsMustBeTheKeptOnes) {
  EditedCheckpoint pruned("qwen3_5_moe");
  pruned.config() = apply_overrides(pruned.config(), {{}, {}, {{1, {0, 2, 5}}}});
  EXPECT_EQ(pruned.refusal(), "shape");
  EXPECT_THAT(pruned.message(), ::testing::HasSubstr("layers.1.mlp.experts.gate_up_proj"));
}

TEST(ModelWeights, ExpertsOfOneStackHaveOneType) {
  EditedCheckpoint edited("nemotron_h");
  Tensor& tensor = edited.at("backbone.layers.1.mixer.experts.3.up_proj.weight");
  const std::vector<float> values = tensor_floats(tensor);
  tensor.bytes = edited.keep(
      std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  tensor.dtype = DType::kF32;
  EXPECT_EQ(edited.refusal(), "dtype");
}

TEST(ModelArena, WeightsAreCountedAndFrozen) {
  for (const char* folder : {"qwen3_5_tied", "qwen3_5_moe", "gemma4_moe", "nemotron_h"}) {
    Fixture fixture(golden(folder), kCapacity);
    int64_t bytes = 0;
    for (const MatrixShape& matrix : model_matrices(fixture.config)) bytes += matrix.elements() * 2;
    const ArenaReport& report = fixture.ops->arena().report();
    EXPECT_EQ(report.live[static_cast<size_t>(Category::kWeights)] +
                  report.live[static_cast<size_t>(Category::kEmbedding)],
              bytes)
        << folder;
    fixture.ops->arena().freeze();
    run_packed(*fixture.model, {{0, 0, std::vector<int32_t>(40, 3)}});
    fixture.model->generate(0, 1, 40, 3, [](int32_t) { return true; });
    EXPECT_THROW(fixture.ops->arena().allocate(1, Category::kWeights, "late"), std::logic_error);
  }
}

TEST(Arena, CountsLiveAndPeak) {
  Arena arena(host_memory());
  void* a = arena.allocate(1000, Category::kKv, "a");
  void* b = arena.allocate(500, Category::kKv, "b");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % 256, 0u);
  EXPECT_EQ(static_cast<char*>(b)[499], 0);
  arena.release(a);
  const auto kv = static_cast<size_t>(Category::kKv);
  EXPECT_EQ(arena.report().live[kv], 500);
  EXPECT_EQ(arena.report().peak[kv], 1500);
  EXPECT_EQ(arena.report().model_storage(), 0);
  EXPECT_THROW(arena.release(a), std::logic_error);
  for (const size_t size : {SIZE_MAX, SIZE_MAX / 2}) {
    try {
      arena.allocate(size, Category::kWeights, "too much");
      ADD_FAILURE() << "allocated";
    } catch (const EnvironmentError& error) {
      EXPECT_EQ(error.code(), "out_of_memory");
      EXPECT_THAT(error.what(), ::testing::HasSubstr("too much"));
    }
  }
  EXPECT_EQ(arena.report().live_total(), 500);
}

TEST(Bench, RunsEveryFamily) {
  for (const char* folder : {"qwen3_5_moe", "gemma4_moe", "nemotron_h"}) {
    auto ops = make_cpu_ops();
    const auto config =
        parse_model_config(read_file(golden(folder) + "/config.json"), "config.json");
    SyntheticSource weights(*ops);
    const auto ceilings = make_cpu_ceilings();
    const BenchOptions options{
        .tokens = 40, .sequence = 20, .decode = 3, .context = 5, .repetitions = 1};
    const BenchReport report = bench_model(*ops, config, weights, *ceilings, options);
    // Of a routed layer's weights a token reads and multiplies by the chosen experts'.
    double active = 0, all = 0;
    for (const MatrixShape& matrix : model_matrices(config)) {
      if (matrix.name == config.embedding_name() || matrix.name == config.head_name()) continue;
      active += static_cast<double>(matrix.active * matrix.rows * matrix.cols);
      all += static_cast<double>(matrix.elements());
    }
    EXPECT_LT(active, 0.9 * all);
    EXPECT_DOUBLE_EQ(report.forward_flops, 2.0 * 40 * active) << folder;
    EXPECT_DOUBLE_EQ(report.step_bytes[static_cast<size_t>(Category::kWeights)], 2 * active);
    EXPECT_GT(report.decode.median(), 0);
  }
}

TEST(Bench, ReportsEveryFigure) {
  auto ops = make_cpu_ops();
  const auto config =
      parse_model_config(read_file(golden("qwen3_5_tied") + "/config.json"), "config.json");
  SyntheticSource weights(*ops);
  const auto ceilings = make_cpu_ceilings();
  const BenchOptions options{
      .tokens = 100, .sequence = 40, .decode = 5, .context = 9, .repetitions = 2};
  const BenchReport report = bench_model(*ops, config, weights, *ceilings, options);
  EXPECT_EQ(report.prefill.values.size(), 2u);
  for (const Samples* samples : {&report.gemm_rate, &report.read_rate, &report.copy_rate,
                                 &report.prefill, &report.scoring, &report.decode}) {
    EXPECT_GT(samples->low(), 0);
    EXPECT_GE(samples->high(), samples->median());
  }
  int64_t weights_count = 0;
  for (const MatrixShape& matrix : model_matrices(config))
    weights_count += matrix.rows * matrix.cols;
  EXPECT_EQ(report.parameters, weights_count);
  EXPECT_DOUBLE_EQ(report.forward_flops,
                   200.0 * static_cast<double>(weights_count - config.vocab * config.hidden));
  const Json json = parse_json(bench_json(report), "bench");
  EXPECT_EQ(json.at("schema"), "cbench.bench.v1");
  EXPECT_FALSE(json.at("profile").at("decode").empty());
  EXPECT_THAT(bench_table(report), ::testing::HasSubstr("delta_net"));
}

}  // namespace
}  // namespace cbench::testing
