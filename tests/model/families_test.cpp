// The families with routed experts, sliding windows and Mamba 2: what their configs become, what is
// refused and under which word, and the published models' sizes.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/config.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"

namespace cbench {
namespace {

using ::testing::HasSubstr;

std::string fixture(const std::string& folder) {
  return std::string(CBENCH_FIXTURES) + "/golden/" + folder + "/config.json";
}
/// A fixture's keys; the bare word that JSON lacks becomes a text that the parser takes as well.
Json edited(const std::string& folder) {
  std::string text = read_file(fixture(folder));
  if (const size_t at = text.find("Infinity"); at != std::string::npos) {
    text.replace(at, 8, "\"Infinity\"");
  }
  return parse_json(text, folder);
}
ModelConfig load(const std::string& folder) {
  return parse_model_config(read_file(fixture(folder)), folder);
}

std::map<std::string, MatrixShape> matrices(const ModelConfig& config) {
  std::map<std::string, MatrixShape> found;
  for (const MatrixShape& matrix : model_matrices(config)) {
    EXPECT_TRUE(found.emplace(matrix.name, matrix).second) << matrix.name;
  }
  return found;
}

void expect_shape(const std::map<std::string, MatrixShape>& all, const std::string& name,
                  int64_t experts, int64_t rows, int64_t cols) {
  ASSERT_TRUE(all.contains(name)) << name;
  const MatrixShape& shape = all.at(name);
  EXPECT_EQ(shape.experts, experts) << name;
  EXPECT_EQ(shape.rows, rows) << name;
  EXPECT_EQ(shape.cols, cols) << name;
}

TEST(Families, QwenWithExperts) {
  const ModelConfig config = load("qwen3_5_moe");
  EXPECT_EQ(config.architecture, "qwen3_5_moe");
  EXPECT_TRUE(config.zero_centred_norm && config.tied_embedding);
  const BlockConfig& block = config.blocks[1];
  EXPECT_EQ(block.moe.count(), 6);
  EXPECT_EQ(block.moe.top_k, 2);
  EXPECT_FALSE(block.moe.sigmoid);
  EXPECT_EQ(block.mlp.gate, "model.layers.1.mlp.shared_expert_gate.weight");
  const auto all = matrices(config);
  expect_shape(all, "model.layers.1.mlp.experts.gate_up_proj", 6, 32, 32);
  expect_shape(all, "model.layers.1.mlp.experts.down_proj", 6, 32, 16);
  expect_shape(all, "model.layers.1.mlp.shared_expert.up_proj.weight", 1, 24, 32);
  EXPECT_FALSE(all.contains("model.layers.1.mlp.gate.weight"));
  EXPECT_EQ(load("qwen3_5_moe_multimodal").prefix, "model.language_model.");
}

TEST(Families, Gemma) {
  const ModelConfig config = load("gemma4_moe");
  EXPECT_DOUBLE_EQ(config.softcap, 3);
  EXPECT_DOUBLE_EQ(config.embedding_scale, std::sqrt(32.0));
  const AttentionConfig& sliding = config.blocks[0].attention;
  const AttentionConfig& full = config.blocks[3].attention;
  EXPECT_EQ(sliding.window, 8);
  EXPECT_EQ(sliding.head_dim, 16);
  EXPECT_EQ(sliding.rope.turning, 8);
  EXPECT_EQ(full.window, 0);
  EXPECT_EQ(full.head_dim, 32);
  EXPECT_EQ(full.kv_heads, 1);
  EXPECT_EQ(full.rope.rotary, 32);
  EXPECT_EQ(full.rope.turning, 4);
  EXPECT_TRUE(full.k_is_v && full.v_norm && !sliding.k_is_v);
  EXPECT_DOUBLE_EQ(full.scale, 1);
  const auto all = matrices(config);
  EXPECT_FALSE(all.contains("model.layers.3.self_attn.v_proj.weight"));
  expect_shape(all, "model.layers.3.self_attn.k_proj.weight", 1, 32, 32);
  expect_shape(all, "model.layers.3.experts.gate_up_proj", 5, 32, 32);
  const ModelConfig dense = load("gemma4_multimodal");
  EXPECT_EQ(dense.blocks[0].moe.experts, 0);
  EXPECT_TRUE(dense.tied_embedding);
  EXPECT_TRUE(matrices(dense).contains("model.language_model.layers.3.self_attn.v_proj.weight"));
}

TEST(Families, Nemotron) {
  const ModelConfig config = load("nemotron_h");  // MEM*E-
  ASSERT_EQ(config.blocks.size(), 6u);
  EXPECT_EQ(config.embedding_name(), "backbone.embeddings.weight");
  EXPECT_EQ(config.final_norm_name(), "backbone.norm_f.weight");
  EXPECT_EQ(config.blocks[0].mixer, MixerKind::kMamba2);
  EXPECT_EQ(config.blocks[0].mlp.width, 0);
  EXPECT_EQ(config.blocks[1].mixer, MixerKind::kNone);
  EXPECT_EQ(config.blocks[3].mixer, MixerKind::kAttention);
  EXPECT_EQ(config.blocks[3].attention.rope.rotary, 0);
  EXPECT_EQ(config.blocks[5].mlp.width, 48);
  EXPECT_DOUBLE_EQ(config.blocks[0].mamba2.dt_min, 0);
  EXPECT_TRUE(std::isinf(config.blocks[0].mamba2.dt_max));
  const auto all = matrices(config);
  expect_shape(all, "backbone.layers.0.mixer.in_proj.weight", 1, 32 + 32 + 2 * 2 * 16 + 4, 32);
  expect_shape(all, "backbone.layers.1.mixer.experts.up_proj", 8, 24, 16);
  expect_shape(all, "backbone.layers.1.mixer.experts.down_proj", 8, 16, 24);
  expect_shape(all, "backbone.layers.1.mixer.fc1_latent_proj.weight", 1, 16, 32);
  EXPECT_FALSE(all.contains("backbone.layers.5.mixer.gate_proj.weight"));

  const ModelConfig wrapped = load("nemotron_h_multimodal");
  EXPECT_EQ(wrapped.prefix, "language_model.backbone.");
  EXPECT_EQ(wrapped.head_name(), "language_model.lm_head.weight");
  EXPECT_EQ(wrapped.blocks[2].moe.groups, 4);
  EXPECT_FLOAT_EQ(static_cast<float>(wrapped.blocks[1].mamba2.dt_max), 0.4f);
}

TEST(Families, NemotronSpellings) {
  Json json = edited("nemotron_h");
  json.erase("hybrid_override_pattern");
  json["layers_block_type"] = {"mamba", "moe", "linear_attention", "attention", "moe", "mlp"};
  const ModelConfig words = parse_model_config(json.dump(), "x");
  EXPECT_EQ(words.blocks[2].mixer, MixerKind::kMamba2);
  EXPECT_EQ(words.blocks[3].mixer, MixerKind::kAttention);
  // A wrapper's inner type may be missing; its own type names the family.
  json.erase("model_type");
  const Json wrapper = {{"model_type", "NemotronH_Omni_Reasoning_V3"}, {"llm_config", json}};
  EXPECT_EQ(parse_model_config(wrapper.dump(), "x").prefix, "language_model.backbone.");
}

TEST(Families, BareInfinityIsRead) {
  // As Python's json module writes it, and as newer transformers does.
  const std::string text = read_file(fixture("nemotron_h"));
  const size_t bare = text.find("Infinity");
  ASSERT_NE(bare, std::string::npos);
  for (const char* bound : {"Infinity", R"({"__float__": "Infinity"})", "\"Infinity\""}) {
    std::string changed = text;
    changed.replace(bare, 8, bound);
    changed.insert(changed.find('{') + 1, R"("note": "Infinity \" Infinity",)");
    EXPECT_TRUE(std::isinf(parse_model_config(changed, "x").blocks[0].mamba2.dt_max)) << bound;
  }
  std::string broken = text;
  broken.replace(bare, 8, "Infinite");
  EXPECT_THROW(parse_model_config(broken, "x"), UsageError);
}

struct Refusal {
  const char* folder;
  const char* key;
  Json value;  ///< null removes the key
  const char* code;
  const char* message;
};

TEST(Families, RefuseWhatTheyCannotRun) {
  const std::vector<Refusal> cases = {
      {"qwen3_5_moe", "num_experts_per_tok", 7, "config", "num_experts_per_tok"},
      {"qwen3_5_moe", "num_experts_per_tok", 0, "config", "num_experts_per_tok"},
      {"qwen3_5_moe", "num_experts", 0, "config", "num_experts"},
      {"qwen3_5_moe", "num_experts", 1 << 30, "config", "num_experts"},
      {"qwen3_5_moe", "num_experts", nullptr, "config", "missing"},
      {"qwen3_5_moe", "moe_intermediate_size", nullptr, "config", "missing"},
      {"qwen3_5_moe", "shared_expert_intermediate_size", -1, "config", "shared_expert"},
      {"qwen3_5_moe", "norm_topk_prob", false, "unsupported_model", "norm_topk_prob"},
      {"qwen3_5_moe", "mlp_only_layers", {1}, "unsupported_model", "every layer"},
      {"qwen3_5_moe", "layer_types", {"full_attention"}, "config", "num_hidden_layers"},
      {"gemma4_moe", "top_k_experts", 6, "config", "top_k_experts"},
      {"gemma4_moe", "top_k_experts", nullptr, "config", "missing"},
      {"gemma4_moe", "moe_intermediate_size", nullptr, "config", "missing"},
      {"gemma4_moe", "hidden_activation", "silu", "unsupported_model", "gelu_pytorch_tanh"},
      {"gemma4_moe", "hidden_size_per_layer_input", 8, "unsupported_model", "per-layer"},
      {"gemma4_moe", "num_kv_shared_layers", 2, "unsupported_model", "share"},
      {"gemma4_moe", "use_double_wide_mlp", true, "unsupported_model", "double-wide"},
      {"gemma4_moe", "use_bidirectional_attention", "all", "unsupported_model", "causal"},
      {"gemma4_moe", "per_layer_config", {{"3", {{"head_dim", 8}}}}, "unsupported_model", "layer"},
      {"gemma4_moe", "num_global_key_value_heads", 3, "config", "multiple"},
      {"gemma4_moe", "global_head_dim", 1 << 20, "config", "global_head_dim"},
      {"gemma4_moe", "sliding_window", 0, "config", "sliding_window"},
      {"gemma4_moe", "sliding_window", -5, "config", "sliding_window"},
      {"gemma4_moe", "final_logit_softcapping", -1.0, "config", "softcapping"},
      {"gemma4_moe", "final_logit_softcapping", 0, "config", "softcapping"},
      {"gemma4_moe", "rope_parameters", {{"full_attention", 3}}, "config", "must be an object"},
      {"gemma4_moe",
       "rope_parameters",
       {{"full_attention", {{"rope_type", "yarn"}}}, {"sliding_attention", Json::object()}},
       "unsupported_model",
       "proportional"},
      {"gemma4_moe",
       "layer_types",
       {"full_attention", "full_attention", "full_attention", "sliding_attention"},
       "config",
       "end with"},
      {"gemma4_moe",
       "layer_types",
       {"full_attention", "chunked_attention", "full_attention", "full_attention"},
       "unsupported_model",
       "chunked"},
      {"nemotron_h", "hybrid_override_pattern", "MEX", "config", "letters"},
      {"nemotron_h", "hybrid_override_pattern", "", "config", "letters"},
      {"nemotron_h", "hybrid_override_pattern", std::string(5000, 'M'), "config", "letters"},
      {"nemotron_h", "hybrid_override_pattern", "ME", "config", "num_hidden_layers"},
      {"nemotron_h", "layers_block_type", {"mamba", "rwkv"}, "unsupported_model", "rwkv"},
      {"nemotron_h", "layers_block_type", "M", "config", "list of strings"},
      {"nemotron_h", "n_group", 3, "config", "n_group"},
      {"nemotron_h", "n_group", 8, "config", "two or more"},
      {"nemotron_h", "topk_group", 2, "config", "topk_group"},
      {"nemotron_h", "num_experts_per_tok", 9, "config", "num_experts_per_tok"},
      {"nemotron_h_multimodal", "num_experts_per_tok", 5, "config", "choose from, 4"},
      {"nemotron_h", "n_routed_experts", nullptr, "config", "missing"},
      {"nemotron_h", "n_shared_experts", 2, "unsupported_model", "one shared expert"},
      {"nemotron_h", "moe_latent_size", 0, "config", "moe_latent_size"},
      {"nemotron_h", "routed_scaling_factor", "5", "config", "routed_scaling_factor"},
      {"nemotron_h", "mlp_hidden_act", "silu", "unsupported_model", "relu2"},
      {"nemotron_h", "mamba_hidden_act", "gelu", "unsupported_model", "silu"},
      {"nemotron_h", "mlp_bias", true, "unsupported_model", "mlp_bias"},
      {"nemotron_h", "attention_bias", true, "unsupported_model", "attention_bias"},
      {"nemotron_h", "sliding_window", 128, "unsupported_model", "sliding"},
      {"nemotron_h", "n_groups", 3, "config", "multiple"},
      {"nemotron_h", "mamba_num_heads", 1 << 20, "config", "mamba_num_heads"},
      {"nemotron_h", "ssm_state_size", nullptr, "config", "missing"},
      {"nemotron_h", "conv_kernel", 1, "config", "conv_kernel"},
      {"nemotron_h", "time_step_limit", {0.5, 0.1}, "config", "rise"},
      {"nemotron_h", "time_step_limit", {0.5}, "config", "two numbers"},
      {"nemotron_h", "time_step_limit", {"x", 1}, "config", "number"},
      {"nemotron_h", "quantization_config", {{"bits", 4}}, "unsupported_model", "BF16"},
  };
  for (const Refusal& refusal : cases) {
    Json json = edited(refusal.folder);
    Json& text = json.contains("llm_config") ? json["llm_config"] : json;
    text[refusal.key] = refusal.value;
    try {
      parse_model_config(json.dump(), "config.json");
      ADD_FAILURE() << refusal.key << " " << refusal.value << " was accepted";
    } catch (const UsageError& error) {
      EXPECT_EQ(error.code(), refusal.code) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(refusal.message));
      EXPECT_THAT(error.what(), HasSubstr("config.json"));
    }
  }
}

TEST(ExpertOverrides, KeepExperts) {
  const ModelConfig config = load("qwen3_5_moe");
  const ModelConfig pruned = apply_overrides(config, {{0, 2}, {{2, 20}}, {{2, {0, 3, 5}}}});
  EXPECT_EQ(pruned.blocks[0].moe.count(), 6);
  EXPECT_EQ(pruned.blocks[1].moe.kept, (std::vector<int64_t>{0, 3, 5}));
  EXPECT_EQ(pruned.blocks[1].mlp.width, 20);  // the shared expert
  expect_shape(matrices(pruned), "model.layers.2.mlp.experts.gate_up_proj", 3, 32, 32);

  struct Bad {
    const char* folder;
    ModelOverrides overrides;
    const char* message;
  };
  const Bad bad[] = {
      {"qwen3_5_moe", {{}, {}, {{0, {0, 6}}}}, "expert 6"},
      {"qwen3_5_moe", {{}, {}, {{0, {-1, 2}}}}, "expert -1"},
      {"qwen3_5_moe", {{}, {}, {{0, {1, 1}}}}, "rise"},
      {"qwen3_5_moe", {{}, {}, {{0, {2, 1}}}}, "rise"},
      {"qwen3_5_moe", {{}, {}, {{0, {4}}}}, "chooses 2"},
      {"qwen3_5_moe", {{}, {}, {{0, {}}}}, "chooses 2"},
      {"qwen3_5_moe", {{1, 2}, {}, {{0, {1, 2}}}}, "not a kept layer"},
      {"nemotron_h", {{}, {}, {{0, {1, 2, 3}}}}, "no routed experts"},
      {"nemotron_h", {{}, {{0, 8}}, {}}, "no MLP"},
      {"gemma4_multimodal", {{}, {}, {{0, {1, 2, 3}}}}, "no routed experts"},
      {"nemotron_h_multimodal", {{}, {}, {{2, {0, 1, 2, 3, 4, 5}}}}, "equally many"},
      {"nemotron_h_multimodal", {{}, {}, {{2, {0, 2, 4, 6}}}}, "two or more"},
  };
  for (const Bad& each : bad) {
    try {
      apply_overrides(load(each.folder), each.overrides);
      ADD_FAILURE() << "accepted: " << each.message;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), "graph");
      EXPECT_EQ(error.exit(), Exit::kGateFailed);
      EXPECT_THAT(error.what(), HasSubstr(each.message));
    }
  }
}

TEST(SuiteConfigs, HaveThePublishedSizes) {
  struct Published {
    const char* file;
    double billions, active_billions;
  };
  // Text parameters, the tied or separate embeddings included; the names round the whole model.
  const Published models[] = {{"qwen3.8-27b", 26.9, 26.9},
                              {"qwen3.5-122b-a10b", 122.1, 9.7},
                              {"gemma-4-26b-a4b-it", 25.2, 3.8},
                              {"nemotron-3.5-super-120b-a12b", 120.7, 12.8}};
  for (const Published& model : models) {
    const std::string path =
        std::string(CBENCH_SOURCE_DIR) + "/tasks/configs/" + model.file + ".json";
    const ModelConfig config = parse_model_config(read_file(path), path);
    double all = 0, active = 0;
    for (const MatrixShape& matrix : model_matrices(config)) {
      all += static_cast<double>(matrix.elements());
      active += static_cast<double>(matrix.active * matrix.rows * matrix.cols);
    }
    EXPECT_NEAR(all / 1e9, model.billions, 0.6) << model.file;
    EXPECT_NEAR(active / 1e9, model.active_billions, 0.6) << model.file;
  }
}

}  // namespace
}  // namespace cbench
