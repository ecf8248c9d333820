// config.json -> ModelConfig. Strict: what the runtime cannot compute exactly is refused by name.
#include "model/config.h"

#include <cmath>

#include "util/error.h"
#include "util/json.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxVocab = 1 << 24;

/// Typed access to one JSON object; every error names the file and the key. A JSON null counts as
/// absent, as transformers writes it for unset options.
class Reader {
 public:
  Reader(const Json& object, std::string_view source) : object_(object), source_(source) {}

  const Json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  int64_t integer(const char* key, int64_t low, int64_t high) const {
    const Json* value = find(key);
    if (!value) fail(key, "is missing");
    return checked(*value, key, low, high);
  }
  int64_t integer_or(const char* key, int64_t low, int64_t high, int64_t otherwise) const {
    const Json* value = find(key);
    return value ? checked(*value, key, low, high) : otherwise;
  }
  double number_or(const char* key, double low, double high, double otherwise) const {
    const Json* value = find(key);
    if (!value) return otherwise;
    const double number = value->is_number() ? value->get<double>() : NAN;
    if (!(number >= low && number <= high)) {
      fail(key, "must be a number between " + std::to_string(low) + " and " + std::to_string(high));
    }
    return number;
  }
  bool boolean_or(const char* key, bool otherwise) const {
    const Json* value = find(key);
    if (!value) return otherwise;
    if (!value->is_boolean()) fail(key, "must be true or false");
    return value->get<bool>();
  }
  std::string text_or(const char* key, const char* otherwise) const {
    const Json* value = find(key);
    if (!value) return otherwise;
    if (!value->is_string()) fail(key, "must be a string");
    return value->get<std::string>();
  }
  Reader object(const char* key) const {
    const Json* value = find(key);
    if (!value || !value->is_object()) fail(key, "must be an object");
    return {*value, source_};
  }
  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw UsageError("config", std::string(source_) + ": \"" + key + "\" " + what);
  }
  [[noreturn]] void unsupported(const std::string& what, const std::string& supported) const {
    throw UsageError("unsupported_model",
                     std::string(source_) + ": " + what + "; supported: " + supported);
  }
  void require_absent(const char* key, const char* meaning) const {
    const Json* value = find(key);
    if (value && !(value->is_boolean() && !value->get<bool>())) {
      unsupported("\"" + std::string(key) + "\" is set (" + meaning + ")", "models without it");
    }
  }

 private:
  int64_t checked(const Json& value, const char* key, int64_t low, int64_t high) const {
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) &&
                      value.get<int64_t>() >= low && value.get<int64_t>() <= high;
    if (!fits) {
      fail(key, "must be a whole number between " + std::to_string(low) + " and " +
                    std::to_string(high));
    }
    return value.get<int64_t>();
  }

  const Json& object_;
  std::string_view source_;
};

/// Rotary parameters: `rope_parameters` as newer transformers write it, or `rope_theta` with an
/// optional `rope_scaling` as older ones did.
void read_rope(const Reader& reader, double default_partial, ModelConfig& config) {
  const bool newer = reader.find("rope_parameters") != nullptr;
  const bool scaled = newer || reader.find("rope_scaling") != nullptr;
  config.partial_rotary = reader.number_or("partial_rotary_factor", 0, 1, default_partial);
  config.rope_theta = reader.number_or("rope_theta", 1, 1e12, 10000);
  if (!scaled) return;
  const Reader rope = reader.object(newer ? "rope_parameters" : "rope_scaling");
  config.rope_theta = rope.number_or("rope_theta", 1, 1e12, config.rope_theta);
  config.partial_rotary = rope.number_or("partial_rotary_factor", 0, 1, config.partial_rotary);
  const std::string type = rope.text_or("rope_type", rope.text_or("type", "default").c_str());
  if (type == "default") return;
  if (type != "llama3")
    reader.unsupported("rope type \"" + printable(type) + "\"", "default, llama3");
  config.rope_factor = rope.number_or("factor", 1, 1e6, 0);
  config.rope_low = rope.number_or("low_freq_factor", 1e-6, 1e6, 0);
  config.rope_high = rope.number_or("high_freq_factor", 1e-6, 1e6, 0);
  config.rope_original = rope.integer("original_max_position_embeddings", 1, INT32_MAX);
  if (config.rope_factor == 0) rope.fail("factor", "is missing (rope type llama3)");
  if (config.rope_low == 0) rope.fail("low_freq_factor", "is missing (rope type llama3)");
  if (config.rope_high <= config.rope_low) {
    rope.fail("high_freq_factor", "must be given and exceed low_freq_factor");
  }
}

void read_attention(const Reader& reader, ModelConfig& config) {
  config.query_heads = reader.integer("num_attention_heads", 1, kMaxWidth);
  config.kv_heads = reader.integer_or("num_key_value_heads", 1, kMaxWidth, config.query_heads);
  if (config.query_heads % config.kv_heads != 0) {
    reader.fail("num_attention_heads", "must be a multiple of num_key_value_heads");
  }
  config.head_dim = reader.integer_or("head_dim", 1, 4096, config.hidden / config.query_heads);
  if (config.head_dim < 1) reader.fail("head_dim", "is missing and hidden_size is too small");
  config.attention_bias = config.output_bias = reader.boolean_or("attention_bias", false);
}

void read_delta_net(const Reader& reader, ModelConfig& config) {
  config.key_heads = reader.integer("linear_num_key_heads", 1, 4096);
  config.value_heads = reader.integer("linear_num_value_heads", 1, 4096);
  config.key_dim = reader.integer("linear_key_head_dim", 1, 4096);
  config.value_dim = reader.integer("linear_value_head_dim", 1, 4096);
  config.conv = reader.integer_or("linear_conv_kernel_dim", 2, 16, 4);
  if (config.value_heads % config.key_heads != 0) {
    reader.fail("linear_num_value_heads", "must be a multiple of linear_num_key_heads");
  }
}

MixerKind mixer_kind(const Reader& reader, const Json& type, bool hybrid) {
  if (type.is_string()) {
    const auto& name = type.get_ref<const std::string&>();
    if (name == "full_attention") return MixerKind::kAttention;
    if (name == "linear_attention" && hybrid) return MixerKind::kDeltaNet;
    reader.unsupported("layer type \"" + printable(name) + "\"",
                       hybrid ? "full_attention, linear_attention" : "full_attention");
  }
  reader.fail("layer_types", "must be a list of strings");
}

void read_blocks(const Reader& reader, bool hybrid, ModelConfig& config) {
  const int64_t layers = reader.integer("num_hidden_layers", 1, kMaxLayers);
  const int64_t width = reader.integer("intermediate_size", 1, kMaxWidth);
  const int64_t interval = reader.integer_or("full_attention_interval", 1, kMaxLayers, 4);
  const Json* types = reader.find("layer_types");
  if (types && (!types->is_array() || types->size() != static_cast<size_t>(layers))) {
    reader.fail("layer_types", "must be a list with num_hidden_layers entries");
  }
  for (int64_t layer = 0; layer < layers; ++layer) {
    BlockConfig block;
    block.layer = layer;
    block.prefix = config.prefix + "layers." + std::to_string(layer) + ".";
    block.mlp_width = width;
    if (types) {
      block.mixer = mixer_kind(reader, (*types)[static_cast<size_t>(layer)], hybrid);
    } else if (hybrid && (layer + 1) % interval != 0) {
      block.mixer = MixerKind::kDeltaNet;
    }
    config.blocks.push_back(std::move(block));
  }
}

void read_text_model(const Reader& reader, ModelConfig& config) {
  const bool hybrid = config.architecture == "qwen3_5";
  const std::string activation = reader.text_or("hidden_act", "silu");
  if (activation != "silu") {
    reader.unsupported("activation \"" + printable(activation) + "\"", "silu");
  }
  reader.require_absent("mlp_bias", "biases in the MLP");
  reader.require_absent("use_sliding_window", "sliding-window attention");
  reader.require_absent("quantization_config", "a quantized checkpoint; give the BF16 one");
  if (reader.integer_or("num_experts", 0, kMaxWidth, 0) > 0) {
    reader.unsupported("mixture of experts", "dense models");
  }
  config.hidden = reader.integer("hidden_size", 1, kMaxWidth);
  config.vocab = reader.integer("vocab_size", 1, kMaxVocab);
  config.norm_eps = reader.number_or("rms_norm_eps", 0, 1, 1e-6);
  config.max_positions = reader.integer_or("max_position_embeddings", 1, INT32_MAX, 2048);
  config.zero_centred_norm = hybrid;
  config.qk_norm = hybrid || config.architecture == "qwen3";
  config.gated_attention = hybrid;
  if (hybrid && !reader.boolean_or("attn_output_gate", true)) {
    reader.unsupported("\"attn_output_gate\": false", "gated attention outputs");
  }
  read_attention(reader, config);
  read_rope(reader, hybrid ? 0.25 : 1.0, config);
  const auto rotary =
      static_cast<int64_t>(static_cast<double>(config.head_dim) * config.partial_rotary);
  if (rotary % 2 != 0) reader.fail("partial_rotary_factor", "gives an odd number of rotary dims");
  read_blocks(reader, hybrid, config);
  for (const BlockConfig& block : config.blocks) {
    if (block.mixer == MixerKind::kDeltaNet) {
      read_delta_net(reader, config);
      break;
    }
  }
}

}  // namespace

ModelConfig parse_model_config(std::string_view json, std::string_view source) {
  const Json root = parse_json(json, source);
  if (!root.is_object()) throw UsageError("config", std::string(source) + ": not a JSON object");
  const Reader reader(root, source);
  const std::string type = reader.text_or("model_type", "");
  ModelConfig config;
  config.prefix = "model.";
  reader.require_absent("quantization_config", "a quantized checkpoint; give the BF16 one");
  if (type == "qwen3_5") {
    const Reader text = reader.object("text_config");
    const std::string nested = text.text_or("model_type", "qwen3_5_text");
    if (nested != "qwen3_5_text") {
      reader.unsupported("text model type \"" + printable(nested) + "\"", "qwen3_5_text");
    }
    config.architecture = "qwen3_5";
    config.prefix = "model.language_model.";
    read_text_model(text, config);
    config.tied_embedding =
        reader.boolean_or("tie_word_embeddings", text.boolean_or("tie_word_embeddings", false));
    return config;
  }
  if (type == "qwen3_5_text") {
    config.architecture = "qwen3_5";
  } else if (type == "qwen3" || type == "llama") {
    config.architecture = type;
  } else {
    reader.unsupported("model type \"" + printable(type) + "\"",
                       "qwen3_5, qwen3_5_text, qwen3, llama");
  }
  read_text_model(reader, config);
  config.tied_embedding = reader.boolean_or("tie_word_embeddings", false);
  return config;
}

}  // namespace cbench
