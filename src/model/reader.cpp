#include "model/reader.h"

#include <cmath>

#include "util/error.h"
#include "util/text.h"

namespace cbench {

const Json* ConfigReader::find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

int64_t ConfigReader::integer(const char* key, int64_t low, int64_t high) const {
  const Json* value = find(key);
  if (!value) fail(key, "is missing");
  return checked(*value, key, low, high);
}

int64_t ConfigReader::integer_or(const char* key, int64_t low, int64_t high,
                                 int64_t otherwise) const {
  const Json* value = find(key);
  return value ? checked(*value, key, low, high) : otherwise;
}

double ConfigReader::number_or(const char* key, double low, double high, double otherwise) const {
  const Json* value = find(key);
  return value ? number(*value, key, low, high) : otherwise;
}

bool ConfigReader::boolean_or(const char* key, bool otherwise) const {
  const Json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_boolean()) fail(key, "must be true or false");
  return value->get<bool>();
}

std::string ConfigReader::text_or(const char* key, const char* otherwise) const {
  const Json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_string()) fail(key, "must be a string");
  return value->get<std::string>();
}

ConfigReader ConfigReader::object(const char* key) const {
  const Json* value = find(key);
  if (!value || !value->is_object()) fail(key, "must be an object");
  return {*value, source_};
}

std::vector<std::string> ConfigReader::texts(const char* key, int64_t count) const {
  std::vector<std::string> out;
  const Json* list = find(key);
  if (!list) return out;
  if (!list->is_array() || list->size() != static_cast<size_t>(count)) {
    fail(key, "must be a list with num_hidden_layers entries");
  }
  for (const Json& item : *list) {
    if (!item.is_string()) fail(key, "must be a list of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::pair<double, double> ConfigReader::limits(const char* key) const {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const Json* list = find(key);
  if (!list) return {0, kNone};
  if (!list->is_array() || list->size() != 2) fail(key, "must be a list of two numbers");
  const auto bound = [&](const Json& value) {
    const Json* tagged = &value;
    if (value.is_object() && value.size() == 1 && value.contains("__float__")) {
      tagged = &value["__float__"];
    }
    return tagged->is_string() && *tagged == "Infinity" ? kNone : number(*tagged, key, 0, 1e9);
  };
  const std::pair<double, double> out = {bound((*list)[0]), bound((*list)[1])};
  if (!(out.first < out.second)) fail(key, "must rise");
  return out;
}

void ConfigReader::fail(const std::string& key, const std::string& what) const {
  throw UsageError("config", std::string(source_) + ": \"" + key + "\" " + what);
}

void ConfigReader::unsupported(const std::string& what, const std::string& supported) const {
  throw UsageError("unsupported_model",
                   std::string(source_) + ": " + what + "; supported: " + supported);
}

void ConfigReader::require_absent(const char* key, const char* meaning) const {
  const Json* value = find(key);
  if (!value || (value->is_boolean() && !value->get<bool>())) return;
  if (value->is_number_integer() && *value == 0) return;
  unsupported("\"" + std::string(key) + "\" is set (" + meaning + ")", "models without it");
}

void ConfigReader::require_text(const char* key, const char* wanted) const {
  const std::string text = text_or(key, wanted);
  if (text != wanted) {
    unsupported("\"" + std::string(key) + "\": \"" + printable(text) + "\"", wanted);
  }
}

int64_t ConfigReader::checked(const Json& value, const char* key, int64_t low, int64_t high) const {
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) &&
                    value.get<int64_t>() >= low && value.get<int64_t>() <= high;
  if (!fits) {
    fail(key,
         "must be a whole number between " + std::to_string(low) + " and " + std::to_string(high));
  }
  return value.get<int64_t>();
}

double ConfigReader::number(const Json& value, const char* key, double low, double high) const {
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (!(number >= low && number <= high)) {
    fail(key, "must be a number between " + std::to_string(low) + " and " + std::to_string(high));
  }
  return number;
}

void read_sizes(const ConfigReader& reader, const char* eps_key, double eps, ModelConfig& config) {
  reader.require_absent("quantization_config", "a quantized checkpoint; give the BF16 one");
  config.hidden = reader.integer("hidden_size", 1, kMaxModelWidth);
  config.vocab = reader.integer("vocab_size", 1, kMaxModelVocab);
  config.norm_eps = reader.number_or(eps_key, 0, 1, eps);
  config.max_positions = reader.integer_or("max_position_embeddings", 1, INT32_MAX, 2048);
}

AttentionConfig read_attention(const ConfigReader& reader, const ModelConfig& config) {
  AttentionConfig attention;
  attention.query_heads = reader.integer("num_attention_heads", 1, kMaxModelHeads);
  attention.kv_heads =
      reader.integer_or("num_key_value_heads", 1, kMaxModelHeads, attention.query_heads);
  if (attention.query_heads % attention.kv_heads != 0) {
    reader.fail("num_attention_heads", "must be a multiple of num_key_value_heads");
  }
  attention.head_dim =
      reader.integer_or("head_dim", 1, 4096, config.hidden / attention.query_heads);
  if (attention.head_dim < 1) reader.fail("head_dim", "is missing and hidden_size is too small");
  attention.bias = attention.output_bias = reader.boolean_or("attention_bias", false);
  attention.scale = 1 / std::sqrt(static_cast<double>(attention.head_dim));
  return attention;
}

RopeConfig plain_rope(const ConfigReader& reader, int64_t head_dim, double theta, double partial) {
  RopeConfig rope;
  rope.theta = theta;
  rope.rotary = static_cast<int64_t>(static_cast<double>(head_dim) * partial);
  if (rope.rotary % 2 != 0) reader.fail("partial_rotary_factor", "gives an odd number of dims");
  rope.turning = rope.rotary / 2;
  return rope;
}

RopeConfig read_rope(const ConfigReader& reader, int64_t head_dim, double default_partial) {
  const bool newer = reader.find("rope_parameters") != nullptr;
  const bool scaled = newer || reader.find("rope_scaling") != nullptr;
  double partial = reader.number_or("partial_rotary_factor", 0, 1, default_partial);
  double theta = reader.number_or("rope_theta", 1, 1e12, 10000);
  if (!scaled) return plain_rope(reader, head_dim, theta, partial);
  const ConfigReader scaling = reader.object(newer ? "rope_parameters" : "rope_scaling");
  theta = scaling.number_or("rope_theta", 1, 1e12, theta);
  partial = scaling.number_or("partial_rotary_factor", 0, 1, partial);
  RopeConfig rope = plain_rope(reader, head_dim, theta, partial);
  const std::string type = scaling.text_or("rope_type", scaling.text_or("type", "default").c_str());
  if (type == "default") return rope;
  if (type != "llama3") {
    reader.unsupported("rope type \"" + printable(type) + "\"", "default, llama3");
  }
  rope.factor = scaling.number_or("factor", 1, 1e6, 0);
  rope.low = scaling.number_or("low_freq_factor", 1e-6, 1e6, 0);
  rope.high = scaling.number_or("high_freq_factor", 1e-6, 1e6, 0);
  rope.original = scaling.integer("original_max_position_embeddings", 1, INT32_MAX);
  if (rope.factor == 0) scaling.fail("factor", "is missing (rope type llama3)");
  if (rope.low == 0) scaling.fail("low_freq_factor", "is missing (rope type llama3)");
  if (rope.high <= rope.low) {
    scaling.fail("high_freq_factor", "must be given and exceed low_freq_factor");
  }
  return rope;
}

void check_experts(const ConfigReader& reader, const char* top_k_key, MoeConfig& moe) {
  const int64_t per_group = moe.experts / moe.groups;
  if (moe.experts % moe.groups != 0 || (moe.groups > 1 && per_group < 2)) {
    reader.fail("n_group", "must divide the experts into groups of two or more");
  }
  if (moe.kept_groups > moe.groups) reader.fail("topk_group", "must not exceed n_group");
  if (moe.top_k > moe.kept_groups * per_group) {
    reader.fail(top_k_key, "must not exceed the number of experts to choose from, " +
                               std::to_string(moe.kept_groups * per_group));
  }
  for (int64_t expert = 0; expert < moe.experts; ++expert) moe.kept.push_back(expert);
}

}  // namespace cbench
