// The model's borders: hostile weights, wrong batches, pruning overrides, arena accounting.
#include "runtime/model.h"

#include <cstring>
#include <list>

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
  for (const char* folder : {"qwen3_5_untied", "llama_untied_bias", "qwen3_dense"}) {
    EditedCheckpoint whole(folder);
    for (const auto& [name, tensor] : whole.tensors()) {
      if (name.find("layers.1") == std::string::npos &&
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
  for (const char* folder : {"qwen3_5_tied", "llama_tied"}) {
    EditedCheckpoint edited(folder);
    for (auto& [name, tensor] : edited.tensors()) {
      std::string bytes;
      while (bytes.size() < tensor.bytes.size()) bytes += "\xc0\x7f";
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

TEST(ModelArena, WeightsAreCountedAndFrozen) {
  Fixture fixture(golden("qwen3_5_tied"), kCapacity);
  int64_t bytes = 0;
  for (const MatrixShape& matrix : model_matrices(fixture.config))
    bytes += matrix.rows * matrix.cols * 2;
  const ArenaReport& report = fixture.ops->arena().report();
  EXPECT_EQ(report.live[static_cast<size_t>(Category::kWeights)] +
                report.live[static_cast<size_t>(Category::kEmbedding)],
            bytes);
  fixture.ops->arena().freeze();
  run_packed(*fixture.model, {{0, 0, std::vector<int32_t>(40, 3)}});
  fixture.model->generate(0, 1, 40, 3, [](int32_t) { return true; });
  EXPECT_THROW(fixture.ops->arena().allocate(1, Category::kWeights, "late"), std::logic_error);
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
