// A small strict YAML tree: what a contract may be written in, with the line of everything.
//
// Refused while parsing: tabs, control characters, bad UTF-8, several documents, duplicate keys,
// anchors, aliases, merge keys, explicit tags, keys that are not plain words, and anything beyond
// the bounds below. Scalars stay text: what they mean is decided where a type is expected.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cbench {

constexpr size_t kMaxYamlBytes = 256u << 10;
constexpr size_t kMaxYamlNodes = 20000;
constexpr int kMaxYamlDepth = 12;

struct YamlNode {
  enum class Kind { kNull, kScalar, kMap, kList };
  Kind kind = Kind::kNull;
  std::string value;              ///< of a scalar
  bool quoted = false;            ///< the scalar was quoted or a block scalar
  std::string file;               ///< where it was written
  int line = 0;                   ///< 1-based; of the key for a value in a mapping
  std::vector<std::string> keys;  ///< of a mapping, parallel to `children`
  std::vector<YamlNode> children;

  const YamlNode* find(std::string_view key) const;
  void erase(std::string_view key);
};

/// Parses one document whose top is a mapping. Throws UsageError ("contract_syntax",
/// "contract_duplicate", "contract_too_large").
YamlNode parse_yaml(const std::string& text, const std::string& file);

/// Lays `task` over `base`: mappings merge key by key, everything else replaces.
YamlNode overlay_yaml(YamlNode base, const YamlNode& task);

/// "tasks/x/contract.yaml:12: "
std::string yaml_place(const YamlNode& node);

/// True for a plain scalar that some YAML reader takes for a boolean, null, number or date, so that
/// it is no safe text without quotes.
bool is_ambiguous_scalar(std::string_view text);

/// Text as a YAML scalar, quoted when it must be.
std::string quote_yaml(std::string_view text);

}  // namespace cbench
