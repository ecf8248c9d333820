// Typed, bounded access to config.json, and the parsers of the families built on it. Strict: what
// the runtime cannot compute exactly is refused by name. A JSON null counts as absent, as
// transformers writes it for unset options.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/config.h"
#include "util/json.h"

namespace cbench {

constexpr int64_t kMaxModelWidth = 1 << 20;
constexpr int64_t kMaxModelLayers = 1024;
constexpr int64_t kMaxModelVocab = 1 << 24;
constexpr int64_t kMaxModelHeads = 4096;
constexpr int64_t kMaxModelExperts = 4096;

/// One JSON object; every error names the file and the key.
class ConfigReader {
 public:
  ConfigReader(const Json& object, std::string_view source) : object_(object), source_(source) {}

  const Json* find(const char* key) const;
  int64_t integer(const char* key, int64_t low, int64_t high) const;
  int64_t integer_or(const char* key, int64_t low, int64_t high, int64_t otherwise) const;
  double number_or(const char* key, double low, double high, double otherwise) const;
  bool boolean_or(const char* key, bool otherwise) const;
  std::string text_or(const char* key, const char* otherwise) const;
  ConfigReader object(const char* key) const;
  /// A list of strings with exactly `count` entries; empty when absent.
  std::vector<std::string> texts(const char* key, int64_t count) const;
  /// Two rising bounds; the upper one may be the text "Infinity". Absent: 0 and infinity.
  std::pair<double, double> limits(const char* key) const;

  [[noreturn]] void fail(const std::string& key, const std::string& what) const;
  [[noreturn]] void unsupported(const std::string& what, const std::string& supported) const;
  void require_absent(const char* key, const char* meaning) const;
  /// Refuses another activation than `wanted`.
  void require_text(const char* key, const char* wanted) const;

 private:
  int64_t checked(const Json& value, const char* key, int64_t low, int64_t high) const;
  double number(const Json& value, const char* key, double low, double high) const;

  const Json& object_;
  std::string_view source_;
};

/// What every family has: sizes, epsilon, positions.
void read_sizes(const ConfigReader& reader, const char* eps_key, double eps, ModelConfig& config);
/// Heads and biases; `head_dim` 0 or absent means hidden / heads.
AttentionConfig read_attention(const ConfigReader& reader, const ModelConfig& config);
/// Rotary parameters: `rope_parameters` as newer transformers writes it, or `rope_theta` with an
/// optional `rope_scaling` as older ones did.
RopeConfig read_rope(const ConfigReader& reader, int64_t head_dim, double default_partial);
/// Frequencies of one kind: `default` or `proportional` (every pair of a head counts, the first
/// share of them turns). Source: transformers, modeling_rope_utils.
RopeConfig plain_rope(const ConfigReader& reader, int64_t head_dim, double theta, double partial);
/// Fills kept and checks top_k, groups and their divisibility.
void check_experts(const ConfigReader& reader, const char* top_k_key, MoeConfig& moe);

// The families. `reader` is the object with the text model's keys; `prefix` of its tensors.
ModelConfig read_qwen(const ConfigReader& reader, const std::string& type,
                      const std::string& prefix);
ModelConfig read_gemma(const ConfigReader& reader, const std::string& prefix);
ModelConfig read_nemotron(const ConfigReader& reader, const std::string& prefix);

}  // namespace cbench
