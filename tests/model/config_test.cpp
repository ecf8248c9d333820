// config.json: the families, both rope layouts, refusals, overrides.
#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "util/error.h"
#include "util/file.h"
#include "util/json.h"

namespace cbench {
namespace {

using ::testing::HasSubstr;

ModelConfig load(const std::string& folder) {
  const std::string path = std::string(CBENCH_FIXTURES) + "/" + folder + "/config.json";
  return parse_model_config(read_file(path), path);
}

Json base() {
  return Json::parse(R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 128})");
}

ModelConfig parse(const Json& json) { return parse_model_config(json.dump(), "config.json"); }

TEST(ModelConfig, ReadsHybridModels) {
  const ModelConfig config = load("golden/qwen3_5_tied");
  EXPECT_EQ(config.architecture, "qwen3_5");
  EXPECT_EQ(config.prefix, "model.");
  EXPECT_TRUE(config.tied_embedding && config.zero_centred_norm &&
              config.blocks[3].attention.gated && config.blocks[3].attention.qk_norm);
  EXPECT_EQ(config.head_name(), config.embedding_name());
  EXPECT_EQ(config.blocks[3].attention.rope.rotary, 8);
  ASSERT_EQ(config.blocks.size(), 4u);
  EXPECT_EQ(config.blocks[2].mixer, MixerKind::kDeltaNet);
  EXPECT_EQ(config.blocks[3].mixer, MixerKind::kAttention);
  EXPECT_EQ(config.blocks[3].prefix, "model.layers.3.");
  EXPECT_EQ(config.blocks[2].delta.value_heads, 4);
}

TEST(ModelConfig, ReadsNestedModels) {
  const ModelConfig config = load("golden/qwen3_5_multimodal");
  EXPECT_EQ(config.prefix, "model.language_model.");
  EXPECT_FALSE(config.tied_embedding);
  EXPECT_EQ(config.head_name(), "lm_head.weight");
}

TEST(ModelConfig, ReadsBothRopeLayouts) {
  const ModelConfig newer = load("golden/llama_rope_llama3");
  EXPECT_DOUBLE_EQ(newer.blocks[0].attention.rope.factor, 4);
  EXPECT_EQ(newer.blocks[0].attention.rope.original, 64);
  Json older = base();
  older["rope_theta"] = 500000.0;
  older["rope_scaling"] = {{"rope_type", "llama3"},
                           {"factor", 8.0},
                           {"low_freq_factor", 1.0},
                           {"high_freq_factor", 4.0},
                           {"original_max_position_embeddings", 8192}};
  const ModelConfig config = parse(older);
  const AttentionConfig& attention = config.blocks[0].attention;
  EXPECT_DOUBLE_EQ(attention.rope.theta, 500000);
  EXPECT_DOUBLE_EQ(attention.rope.factor, 8);
  EXPECT_EQ(attention.head_dim, 16);
  EXPECT_EQ(attention.kv_heads, 4);
}

TEST(ModelConfig, DerivesLayerTypesFromTheInterval) {
  Json json = read_json(std::string(CBENCH_FIXTURES) + "/golden/qwen3_5_tied/config.json");
  json.erase("layer_types");
  json["full_attention_interval"] = 2;
  const ModelConfig config = parse(json);
  EXPECT_EQ(config.blocks[0].mixer, MixerKind::kDeltaNet);
  EXPECT_EQ(config.blocks[1].mixer, MixerKind::kAttention);
}

struct Refusal {
  const char* key;
  Json value;
  const char* code;
  const char* message;
};

TEST(ModelConfig, RefusesWhatItCannotRun) {
  const std::vector<Refusal> cases = {
      {"model_type", "mixtral", "unsupported_model", "supported: qwen3_5, qwen3_5_text"},
      {"model_type", nullptr, "unsupported_model", "model type"},
      {"hidden_act", "gelu", "unsupported_model", "supported: silu"},
      {"mlp_bias", true, "unsupported_model", "mlp_bias"},
      {"rope_scaling",
       {{"rope_type", "yarn"}, {"factor", 4.0}},
       "unsupported_model",
       "default, llama3"},
      {"rope_scaling", {{"rope_type", "llama3"}}, "config", "original_max_position_embeddings"},
      {"quantization_config", {{"bits", 4}}, "unsupported_model", "BF16"},
      {"use_sliding_window", true, "unsupported_model", "sliding"},
      {"layer_types",
       {"full_attention", "sliding_attention", "full_attention", "full_attention"},
       "unsupported_model",
       "sliding_attention"},
      {"layer_types", {"full_attention"}, "config", "num_hidden_layers"},
      {"layer_types", {1, 2, 3, 4}, "config", "strings"},
      {"hidden_size", "64", "config", "hidden_size"},
      {"hidden_size", 0, "config", "hidden_size"},
      {"hidden_size", -1, "config", "hidden_size"},
      {"hidden_size", 1e30, "config", "hidden_size"},
      {"hidden_size", nullptr, "config", "missing"},
      {"num_hidden_layers", 1000000, "config", "num_hidden_layers"},
      {"num_key_value_heads", 3, "config", "multiple"},
      {"rms_norm_eps", "1e-6", "config", "rms_norm_eps"},
      {"rope_theta", -1.0, "config", "rope_theta"},
      {"partial_rotary_factor", 0.07, "config", "odd"},
      {"attention_bias", 1, "config", "attention_bias"},
  };
  for (const Refusal& refusal : cases) {
    Json json = base();
    json[refusal.key] = refusal.value;
    try {
      parse(json);
      ADD_FAILURE() << refusal.key << " " << refusal.value << " was accepted";
    } catch (const UsageError& error) {
      EXPECT_EQ(error.code(), refusal.code) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(refusal.message));
      EXPECT_THAT(error.what(), HasSubstr("config.json"));
    }
  }
  EXPECT_THROW(parse_model_config("[1]", "x"), UsageError);
  EXPECT_THROW(parse_model_config("{", "x"), UsageError);
}

TEST(ModelOverrides, KeepLayersAndNarrowMlps) {
  const ModelConfig config = load("golden/llama_tied");
  const ModelConfig pruned = apply_overrides(config, {{0, 3}, {{3, 40}}, {}});
  ASSERT_EQ(pruned.blocks.size(), 2u);
  EXPECT_EQ(pruned.blocks[1].prefix, "model.layers.3.");
  EXPECT_EQ(pruned.blocks[0].mlp.width, 96);
  EXPECT_EQ(pruned.blocks[1].mlp.width, 40);
  EXPECT_EQ(apply_overrides(config, {}).blocks.size(), 4u);
  const ModelOverrides bad[] = {{{4}, {}, {}},       {{-1}, {}, {}},      {{1, 1}, {}, {}},
                                {{2, 1}, {}, {}},    {{0}, {{1, 8}}, {}}, {{}, {{0, 0}}, {}},
                                {{}, {{0, 97}}, {}}, {{}, {{9, 4}}, {}},  {{}, {}, {{0, {0}}}}};
  for (const ModelOverrides& overrides : bad) {
    try {
      apply_overrides(config, overrides);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), "graph");
      EXPECT_EQ(error.exit(), Exit::kGateFailed);
    }
  }
}

TEST(ModelMatrices, ListsEveryMatrixOnce) {
  const auto names = [](const ModelConfig& config) {
    std::map<std::string, std::pair<int64_t, int64_t>> found;
    for (const MatrixShape& matrix : model_matrices(config)) {
      EXPECT_TRUE(found.emplace(matrix.name, std::pair{matrix.rows, matrix.cols}).second);
    }
    return found;
  };
  const auto tied = names(load("golden/qwen3_5_tied"));
  EXPECT_EQ(tied.size(), 1u + 3 * 8 + 7);
  EXPECT_EQ(tied.at("model.layers.3.self_attn.q_proj.weight"),
            std::pair(int64_t{256}, int64_t{64}));
  EXPECT_EQ(tied.at("model.layers.0.linear_attn.in_proj_qkv.weight"),
            std::pair(int64_t{128}, int64_t{64}));
  EXPECT_EQ(names(load("golden/qwen3_5_multimodal")).count("lm_head.weight"), 1u);
}

}  // namespace
}  // namespace cbench
