#include "task/yaml_tree.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

[[noreturn]] void refuse(const std::string& file, int line, const std::string& what,
                         const char* code = "contract_syntax") {
  throw UsageError(code, file + ":" + std::to_string(line) + ": " + what);
}

/// Builds the tree from parser events, which is the only level where duplicates and aliases show.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const std::string& file) : file_(file) {}
  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    check(mark, "", anchor);
    if (key_expected()) refuse(file_, mark.line + 1, "expected a key before the colon");
    add(leaf(YamlNode::Kind::kNull, mark));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(file_, mark.line + 1, "aliases (*name) are not allowed; write the value out");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check(mark, tag, anchor);
    if (key_expected()) {
      take_key(mark, value);
      return;
    }
    YamlNode node = leaf(YamlNode::Kind::kScalar, mark);
    node.value = value;
    node.quoted = tag == "!";
    add(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    YamlNode node;
    bool has_key = false;
    int key_line = 0;
  };

  bool key_expected() const {
    return !stack_.empty() && stack_.back().node.kind == YamlNode::Kind::kMap &&
           !stack_.back().has_key;
  }

  void check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    const int line = mark.line + 1;
    if (anchor != YAML::NullAnchor) refuse(file_, line, "anchors (&name) are not allowed");
    if (!tag.empty() && tag != "?" && tag != "!")
      refuse(file_, line, "tags (!name) are not allowed");
  }

  YamlNode leaf(YamlNode::Kind kind, const YAML::Mark& mark) const {
    YamlNode node;
    node.kind = kind;
    node.file = file_;
    // A value is reported at its key: the parser marks an empty value at whatever follows it.
    node.line = !stack_.empty() && stack_.back().has_key ? stack_.back().key_line : mark.line + 1;
    return node;
  }

  void take_key(const YAML::Mark& mark, const std::string& key) {
    Frame& frame = stack_.back();
    const int line = mark.line + 1;
    if (key == "<<") refuse(file_, line, "merge keys (<<) are not allowed; use include:");
    const auto found = std::find(frame.node.keys.begin(), frame.node.keys.end(), key);
    if (found != frame.node.keys.end()) {
      const auto& first = frame.node.children[static_cast<size_t>(found - frame.node.keys.begin())];
      refuse(file_, line,
             "duplicate key \"" + printable(key, 60) + "\" (first on line " +
                 std::to_string(first.line) + ")",
             "contract_duplicate");
    }
    frame.node.keys.push_back(key);
    frame.has_key = true;
    frame.key_line = line;
  }

  void open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    check(mark, tag, anchor);
    if (key_expected()) refuse(file_, mark.line + 1, "a key must be a plain word");
    if (stack_.size() >= static_cast<size_t>(kMaxYamlDepth)) {
      refuse(file_, mark.line + 1,
             "nested deeper than " + std::to_string(kMaxYamlDepth) + " levels");
    }
    stack_.push_back({leaf(kind, mark)});
  }

  void close() {
    YamlNode node = std::move(stack_.back().node);
    stack_.pop_back();
    add(std::move(node));
  }

  void add(YamlNode node) {
    if (++count_ > kMaxYamlNodes) {
      refuse(file_, node.line, "more than " + std::to_string(kMaxYamlNodes) + " values",
             "contract_too_large");
    }
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    stack_.back().node.children.push_back(std::move(node));
    stack_.back().has_key = false;
  }

  const std::string& file_;
  std::vector<Frame> stack_;
  YamlNode root_;
  size_t count_ = 0;
};

/// The byte-level rules, before the parser sees anything.
void check_bytes(const std::string& text, const std::string& file) {
  if (text.size() > kMaxYamlBytes) {
    throw UsageError("contract_too_large", file + ": " + std::to_string(text.size()) +
                                               " bytes; a contract has at most " +
                                               std::to_string(kMaxYamlBytes));
  }
  int line = 1;
  for (const char c : text) {
    if (c == '\t') refuse(file, line, "tab character; indent with spaces");
    if (c == '\n') ++line;
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\r') || byte == 0x7f) {
      refuse(file, line, "control character " + printable(std::string(1, c)));
    }
  }
  size_t start = 0;
  for (line = 1; start < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', start), text.size());
    if (!is_utf8(std::string_view(text).substr(start, end - start))) {
      refuse(file, line, "not valid UTF-8");
    }
    start = end + 1;
  }
  if (text.starts_with("\xef\xbb\xbf")) refuse(file, 1, "byte order mark; save as plain UTF-8");
}

bool all_of_set(std::string_view text, std::string_view set) {
  return text.find_first_not_of(set) == std::string_view::npos;
}

}  // namespace

const YamlNode* YamlNode::find(std::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] == key) return &children[i];
  }
  return nullptr;
}

void YamlNode::erase(std::string_view key) {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] != key) continue;
    keys.erase(keys.begin() + static_cast<std::ptrdiff_t>(i));
    children.erase(children.begin() + static_cast<std::ptrdiff_t>(i));
    return;
  }
}

YamlNode parse_yaml(const std::string& text, const std::string& file) {
  check_bytes(text, file);
  TreeBuilder builder(file);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) refuse(file, 1, "the file is empty");
    YamlNode root = builder.take();
    if (root.kind != YamlNode::Kind::kMap) {
      refuse(file, std::max(1, root.line), "expected a mapping (key: value) at the top");
    }
    TreeBuilder second(file);
    if (parser.HandleNextDocument(second)) {
      refuse(file, second.take().line, "a second document (---); one file holds one contract");
    }
    return root;
  } catch (const YAML::Exception& error) {
    refuse(file, std::max(0, error.mark.line) + 1, "not valid YAML: " + error.msg);
  }
}

YamlNode overlay_yaml(YamlNode base, const YamlNode& task) {
  if (base.kind != YamlNode::Kind::kMap || task.kind != YamlNode::Kind::kMap) return task;
  base.file = task.file;
  base.line = task.line;
  for (size_t i = 0; i < task.keys.size(); ++i) {
    const auto found = std::find(base.keys.begin(), base.keys.end(), task.keys[i]);
    if (found == base.keys.end()) {
      base.keys.push_back(task.keys[i]);
      base.children.push_back(task.children[i]);
    } else {
      YamlNode& child = base.children[static_cast<size_t>(found - base.keys.begin())];
      child = overlay_yaml(std::move(child), task.children[i]);
    }
  }
  return base;
}

std::string yaml_place(const YamlNode& node) {
  return node.file + ":" + std::to_string(node.line) + ": ";
}

bool is_ambiguous_scalar(std::string_view text) {
  static constexpr std::array<std::string_view, 12> kWords{
      "y", "n", "yes", "no", "on", "off", "true", "false", "null", "~", ".nan", ".inf"};
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (std::find(kWords.begin(), kWords.end(), lower) != kWords.end()) return true;
  if (lower == "-.inf" || lower == "+.inf") return true;
  if (lower.starts_with("0x") && all_of_set(lower.substr(2), "0123456789abcdef_")) return true;
  if (lower.starts_with("0o") && all_of_set(lower.substr(2), "01234567")) return true;
  // Integers, decimals, exponents, 1_000, sexagesimal 1:30, dates 2026-01-31.
  return lower.find_first_of("0123456789") != std::string::npos &&
         all_of_set(lower, "0123456789+-_.:e");
}

std::string quote_yaml(std::string_view text) {
  static constexpr std::string_view kSafe =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+ ";
  const bool plain = !text.empty() && all_of_set(text, kSafe) && !is_ambiguous_scalar(text) &&
                     text.front() != ' ' && text.back() != ' ' && text.front() != '-';
  if (plain) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n') {
      quoted += "\\n";
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace cbench
