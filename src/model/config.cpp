// config.json -> ModelConfig: finds the family and the text model's keys in the file.
#include "model/config.h"

#include <algorithm>
#include <cctype>

#include "model/reader.h"
#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr const char* kSupported =
    "qwen3_5, qwen3_5_text, qwen3_5_moe, qwen3_5_moe_text, qwen3, llama, gemma4, gemma4_text, "
    "nemotron_h, and wrappers of a nemotron_h";

/// A multimodal wrapper: the text model's keys are in `text_config`.
ModelConfig nested(const ConfigReader& root, const std::string& type, bool tied_by_default) {
  const ConfigReader text = root.object("text_config");
  text.require_text("model_type", (type + "_text").c_str());
  const std::string prefix = "model.language_model.";
  ModelConfig config = type == "gemma4" ? read_gemma(text, prefix) : read_qwen(text, type, prefix);
  config.tied_embedding = root.boolean_or("tie_word_embeddings",
                                          text.boolean_or("tie_word_embeddings", tied_by_default));
  return config;
}

/// The key under which a multimodal wrapper keeps a nemotron_h, or null. The wrappers' own types
/// begin with the family's name in one spelling or another; the inner type may be left out.
const char* nemotron_key(const ConfigReader& root, std::string type) {
  std::erase(type, '_');
  std::transform(type.begin(), type.end(), type.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const char* assumed = type.starts_with("nemotronh") ? "nemotron_h" : "";
  for (const char* key : {"text_config", "llm_config"}) {
    const Json* inner = root.find(key);
    if (inner && inner->is_object() &&
        root.object(key).text_or("model_type", assumed) == "nemotron_h") {
      return key;
    }
  }
  return nullptr;
}

}  // namespace

ModelConfig parse_model_config(std::string_view json, std::string_view source) {
  const Json root = parse_json(quote_infinity(json), source);
  if (!root.is_object()) throw UsageError("config", std::string(source) + ": not a JSON object");
  const ConfigReader reader(root, source);
  reader.require_absent("quantization_config", "a quantized checkpoint; give the BF16 one");
  const std::string type = reader.text_or("model_type", "");
  if (type == "qwen3_5" || type == "qwen3_5_moe") return nested(reader, type, false);
  if (type == "gemma4") return nested(reader, type, true);
  ModelConfig config;
  if (type == "qwen3_5_text" || type == "qwen3_5_moe_text" || type == "qwen3" || type == "llama") {
    config = read_qwen(reader, type, "model.");
  } else if (type == "gemma4_text") {
    config = read_gemma(reader, "model.");
  } else if (type == "nemotron_h") {
    config = read_nemotron(reader, "");
  } else if (const char* key = nemotron_key(reader, type)) {
    return read_nemotron(reader.object(key), "language_model.");
  } else {
    reader.unsupported("model type \"" + printable(type) + "\"", kSupported);
  }
  config.tied_embedding = reader.boolean_or("tie_word_embeddings", type == "gemma4_text");
  return config;
}

}  // namespace cbench
