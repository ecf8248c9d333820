// Reads contract.yaml: strict tree, optional shared template, then every field by its type and
// range.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>

#include "task/contract.h"
#include "task/fields.h"
#include "task/yaml_tree.h"
#include "util/error.h"
#include "util/file.h"
#include "util/hash.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxIncludes = 4;

bool digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Why a scalar that looks like a number is not one here; "" when there is nothing to explain.
std::string number_hint(const YamlNode& node) {
  const std::string& text = node.value;
  if (node.quoted) return " (quoted text; write it without quotes)";
  if (text.size() > 1 && text[0] == '0' && digits(text)) {
    return " (a leading zero means octal to some YAML readers; write it without)";
  }
  if (text.find('_') != std::string::npos) return " (write it without underscores)";
  if (text.starts_with("0x") || text.starts_with("0o")) return " (write it in decimal)";
  if (text.find(':') != std::string::npos) return " (some YAML readers take this for base 60)";
  return "";
}

std::string show(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kMap:
      return "a mapping";
    case YamlNode::Kind::kList:
      return "a list";
    default:
      return "\"" + printable(node.value, 80) + "\"";
  }
}

/// Assigns the fields of a contract from a tree.
class Reader : public FieldVisitor {
 public:
  explicit Reader(const YamlNode& root) { frames_.push_back({&root, "", {}}); }

  void begin(const char* key, Need need) override {
    const YamlNode* node = take(key, need);
    if (node != nullptr && node->kind != YamlNode::Kind::kMap) {
      wrong(*node, path(key), "a mapping (key: value lines)");
    }
    frames_.push_back({node, path(key), {}});
  }
  void end() override {
    close_mapping();
    frames_.pop_back();
  }

  void text(const char* key, std::string& value, const TextRule& rule, Need need) override {
    const YamlNode* node = take(key, need);
    if (node != nullptr) value = text_of(*node, path(key), rule);
  }

  void integer(const char* key, int64_t& value, int64_t least, int64_t most, Need need) override {
    const YamlNode* node = take(key, need);
    if (node == nullptr) return;
    const std::string expected =
        least == most ? std::to_string(least)
                      : "an integer from " + std::to_string(least) + " to " + std::to_string(most);
    const std::string& text = node->value;
    const std::string_view magnitude = std::string_view(text).substr(text.starts_with('-') ? 1 : 0);
    const bool plain = node->kind == YamlNode::Kind::kScalar && !node->quoted &&
                       digits(magnitude) && (magnitude.size() == 1 || magnitude[0] != '0');
    if (!plain) wrong(*node, path(key), expected, number_hint(*node));
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    if (parsed.ec != std::errc{} || value < least || value > most) {
      wrong(*node, path(key), expected, "", "contract_range");
    }
  }

  void number(const char* key, double& value, double least, double most, Need need) override {
    const YamlNode* node = take(key, need);
    if (node == nullptr) return;
    char expected[96];
    std::snprintf(expected, sizeof expected, "a number from %.9g to %.9g", least, most);
    if (node->kind != YamlNode::Kind::kScalar || node->quoted ||
        !parse_decimal(node->value, value)) {
      wrong(*node, path(key), expected, number_hint(*node));
    }
    if (!(value >= least && value <= most)) wrong(*node, path(key), expected, "", "contract_range");
  }

  void flag(const char* key, bool& value) override {
    const YamlNode* node = take(key, Need::kOptional);
    if (node == nullptr) return;
    const bool plain = node->kind == YamlNode::Kind::kScalar && !node->quoted;
    if (!plain || (node->value != "true" && node->value != "false")) {
      wrong(*node, path(key), "true or false");
    }
    value = node->value == "true";
  }

  void size(const char* key, int64_t& bytes, int64_t most, Need need) override {
    const YamlNode* node = take(key, need);
    if (node == nullptr) return;
    if (node->kind != YamlNode::Kind::kScalar) wrong(*node, path(key), kSizeWords);
    try {
      bytes = parse_size(node->value);
    } catch (const UsageError&) {
      wrong(*node, path(key), kSizeWords);
    }
    if (bytes < 1 || bytes > most) {
      wrong(*node, path(key), "a size from 1 B to " + format_size(most), "", "contract_range");
    }
  }

  void duration(const char* key, double& seconds, double most) override {
    const YamlNode* node = take(key, Need::kRequired);
    if (node == nullptr) return;
    if (node->kind != YamlNode::Kind::kScalar) wrong(*node, path(key), kDurationWords);
    try {
      seconds = parse_duration(node->value);
    } catch (const UsageError&) {
      wrong(*node, path(key), kDurationWords, number_hint(*node));
    }
    if (seconds > most) {
      wrong(*node, path(key), "at most " + format_duration(most), "", "contract_range");
    }
  }

  void fraction(const char* key, int64_t& numerator, int64_t& denominator) override {
    const YamlNode* node = take(key, Need::kRequired);
    if (node == nullptr) return;
    const char* expected = "a decimal above 0 and at most 1 with up to 6 places, for example 0.8";
    double value = 0;
    const size_t point = node->value.find('.');
    const std::string places = point == std::string::npos ? "" : node->value.substr(point + 1);
    if (node->kind != YamlNode::Kind::kScalar || node->quoted ||
        !parse_decimal(node->value, value) || places.size() > 6 ||
        !(places.empty() || digits(places))) {
      wrong(*node, path(key), expected, number_hint(*node));
    }
    if (!(value > 0 && value <= 1)) wrong(*node, path(key), expected, "", "contract_range");
    numerator = std::llround(value * 1e6);
    const int64_t divisor = std::gcd(numerator, int64_t{1'000'000});
    numerator /= divisor;
    denominator = 1'000'000 / divisor;
  }

  void words(const char* key, std::vector<std::string>& values, const TextRule& rule, size_t most,
             Need need) override {
    const YamlNode* node = take(key, need);
    if (node == nullptr) return;
    const std::string expected = "a list of 1 to " + std::to_string(most) + " entries";
    if (node->kind != YamlNode::Kind::kList || node->children.empty() ||
        node->children.size() > most) {
      wrong(*node, path(key), expected);
    }
    values.clear();
    for (size_t i = 0; i < node->children.size(); ++i) {
      const std::string place = path(key) + "[" + std::to_string(i) + "]";
      values.push_back(text_of(node->children[i], place, rule));
      if (std::find(values.begin(), values.end() - 1, values.back()) != values.end() - 1) {
        wrong(node->children[i], place, "each entry once");
      }
    }
  }

  size_t begin_list(const char* key, size_t, size_t most, Need need) override {
    const YamlNode* node = take(key, need);
    frames_.push_back({node, path(key), {}});
    if (node == nullptr) return 0;
    if (node->kind != YamlNode::Kind::kList || node->children.size() > most) {
      wrong(*node, frames_.back().path, "a list of at most " + std::to_string(most) + " entries");
    }
    return node->children.size();
  }
  void begin_item(size_t index) override {
    const YamlNode* node = &frames_.back().node->children[index];
    const std::string place = frames_.back().path + "[" + std::to_string(index) + "]";
    places_[place] = yaml_place(*node);
    if (node->kind != YamlNode::Kind::kMap) wrong(*node, place, "a mapping (key: value lines)");
    frames_.push_back({node, place, {}});
  }
  void end_item() override { end(); }
  void end_list() override { frames_.pop_back(); }

  /// Refuses unknown and missing keys of the mapping being read.
  void close_mapping() {
    const Frame& frame = frames_.back();
    if (frame.node == nullptr) return;
    for (size_t i = 0; i < frame.node->keys.size(); ++i) {
      const std::string& key = frame.node->keys[i];
      if (std::find(frame.known.begin(), frame.known.end(), key) != frame.known.end()) continue;
      const std::string near = nearest(key, frame.known);
      std::string message = yaml_place(frame.node->children[i]) + "unknown key \"" +
                            join(frame.path, printable(key, 60)) + "\"";
      message += near.empty() ? "; expected one of " + list(frame.known)
                              : "; did you mean \"" + near + "\"?";
      throw UsageError("contract_unknown_key", message);
    }
    for (const std::string& key : frame.known) {
      if (frame.node->find(key) == nullptr && required_.contains(join(frame.path, key))) {
        throw UsageError("contract_missing",
                         yaml_place(*frame.node) + "missing key \"" + join(frame.path, key) + "\"");
      }
    }
  }

  /// "file:line: " of a key, or of the nearest mapping around it.
  std::string place_of(std::string key) const {
    while (true) {
      const auto found = places_.find(key);
      if (found != places_.end()) return found->second;
      const size_t cut = key.find_last_of(".[");
      if (cut == std::string::npos) return yaml_place(*frames_.front().node);
      key.resize(cut);
    }
  }

 private:
  struct Frame {
    const YamlNode* node;  ///< nullptr: an optional section that is absent
    std::string path;
    std::vector<std::string> known;
  };
  static constexpr const char* kSizeWords = "a size with its unit, for example 8 GiB";
  static constexpr const char* kDurationWords = "a duration with its unit, for example 8h or 90s";

  static std::string join(const std::string& section, const std::string& key) {
    return section.empty() ? key : section + "." + key;
  }
  static std::string list(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
    return text;
  }
  std::string path(const char* key) const { return join(frames_.back().path, key); }

  const YamlNode* take(const char* key, Need need) {
    Frame& frame = frames_.back();
    frame.known.emplace_back(key);
    if (need == Need::kRequired) required_[path(key)] = true;
    const YamlNode* node = frame.node == nullptr ? nullptr : frame.node->find(key);
    if (node != nullptr) places_[path(key)] = yaml_place(*node);
    return node;
  }

  [[noreturn]] static void wrong(const YamlNode& node, const std::string& key,
                                 const std::string& expected, const std::string& hint = "",
                                 const char* code = "contract_type") {
    throw UsageError(
        code, yaml_place(node) + key + ": expected " + expected + ", found " + show(node) + hint);
  }

  static std::string text_of(const YamlNode& node, const std::string& key, const TextRule& rule) {
    if (node.kind != YamlNode::Kind::kScalar) wrong(node, key, rule.expected);
    if (!node.quoted && is_ambiguous_scalar(node.value)) {
      wrong(node, key, rule.expected, "; put it in quotes if it is meant as text");
    }
    if (!rule.accepts(node.value)) wrong(node, key, rule.expected);
    return node.value;
  }

  std::vector<Frame> frames_;
  std::map<std::string, bool> required_;
  std::map<std::string, std::string> places_;
};

[[noreturn]] void refuse_include(const YamlNode& include, const std::string& what) {
  throw UsageError("contract_include", yaml_place(include) + "include: " + what);
}

/// The template's path, which must stay inside `tasks_root` by name.
std::string included_path(const YamlNode& include, const std::string& path,
                          const std::string& tasks_root) {
  if (include.kind != YamlNode::Kind::kScalar || include.value.empty()) {
    refuse_include(include, "expected a template's path, for example ../shared/standard-gpu.yaml");
  }
  const fs::path relative = include.value;
  if (relative.is_absolute()) refuse_include(include, "expected a path relative to this file");
  const fs::path full = (fs::path(path).parent_path() / relative).lexically_normal();
  const fs::path inside = full.lexically_relative(fs::path(tasks_root).lexically_normal());
  if (inside.empty() || *inside.begin() == "..") {
    refuse_include(include, "\"" + printable(include.value) + "\" is outside the tasks directory");
  }
  return full.string();
}

YamlNode read_template(const YamlNode& include, const std::string& shared) {
  YamlNode base;
  try {
    base = parse_yaml(read_file(shared, kMaxYamlBytes + 1), shared);
  } catch (const EnvironmentError& error) {
    refuse_include(include, error.what());
  }
  if (const YamlNode* nested = base.find("include")) {
    refuse_include(*nested, "a template cannot include another one");
  }
  return base;
}

/// The file's tree, laid over its templates' in their order.
YamlNode read_tree(const std::string& path, const std::string& tasks_root) {
  YamlNode tree = parse_yaml(read_file(path, kMaxYamlBytes + 1), path);
  const YamlNode* found = tree.find("include");
  if (found == nullptr) return tree;
  const YamlNode include = *found;
  const bool list = include.kind == YamlNode::Kind::kList;
  if (list && (include.children.empty() || include.children.size() > kMaxIncludes)) {
    refuse_include(include, "expected 1 to " + std::to_string(kMaxIncludes) + " templates");
  }
  YamlNode base;
  base.kind = YamlNode::Kind::kMap;
  for (const YamlNode& one : list ? include.children : std::vector<YamlNode>{include}) {
    base = overlay_yaml(std::move(base), read_template(one, included_path(one, path, tasks_root)));
  }
  tree.erase("include");
  return overlay_yaml(std::move(base), tree);
}

/// The directory's name for tasks/<name>/contract.yaml; a frozen copy elsewhere states its name.
void settle_name(Contract& contract, const Reader& reader, bool frozen) {
  if (frozen && !contract.name.empty()) return;
  const std::string directory = fs::path(contract.path).parent_path().filename().string();
  if (!contract.name.empty() && contract.name != directory) {
    throw UsageError("contract_conflict", reader.place_of("name") + "name: expected \"" +
                                              printable(directory) +
                                              "\", the directory's name (leave it out), found \"" +
                                              contract.name + "\"");
  }
  contract.name = directory;
}

}  // namespace

Contract load_contract(const std::string& path, const std::string& tasks_root) {
  Contract contract;
  const fs::path full = fs::absolute(path).lexically_normal();
  contract.path = full.string();
  contract.tasks_root = tasks_root.empty() ? full.parent_path().parent_path().string()
                                           : fs::absolute(tasks_root).lexically_normal().string();
  if (contract.tasks_root.size() > 1 && contract.tasks_root.back() == '/') {
    contract.tasks_root.pop_back();
  }
  const YamlNode tree = read_tree(contract.path, contract.tasks_root);
  Reader reader(tree);
  visit_fields(reader, contract);
  reader.close_mapping();
  settle_name(contract, reader, !tasks_root.empty());
  const Conflict conflict = find_conflict(contract);
  if (!conflict.key.empty()) {
    throw UsageError("contract_conflict",
                     reader.place_of(conflict.key) + conflict.key + ": " + conflict.message);
  }
  contract.text = render_contract(contract);
  contract.sha256 = sha256_hex(contract.text);
  return contract;
}

}  // namespace cbench
