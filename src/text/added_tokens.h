// Added tokens: strings that are cut out of the text before the model sees it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace cbench {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< only where no word character touches it
  bool lstrip = false;       ///< swallows white space before it
  bool rstrip = false;       ///< swallows white space behind it
  bool normalized = true;    ///< matched after normalization instead of on the raw text
  bool special = false;      ///< left out by decode(skip_special)
};

/// Finds tokens in text, leftmost first and of these the longest (a trie; a first-byte table skips
/// the places where none can begin).
class AddedTokenMatcher {
 public:
  static constexpr size_t kMaxContent = 1024;  ///< bytes; bounds the work per place

  AddedTokenMatcher();

  /// `content` is what the text is searched for; the first token with the same content wins.
  void add(std::string_view content, const AddedToken& token);

  /// Cuts `text` in order: visit(stretch, nullptr) for text, visit({}, token) for a token.
  using Visitor = std::function<void(std::string_view stretch, const AddedToken* token)>;
  void split(std::string_view text, const Visitor& visit) const;

 private:
  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> next;  ///< sorted by byte
    int32_t token = -1;                              ///< index into tokens_
  };
  const Node* child(const Node& node, char byte) const;
  /// Length of the longest token at the start of `text`, 0 if none; `token` gets its index.
  size_t longest(std::string_view text, int32_t& token) const;

  std::vector<Node> nodes_;
  std::vector<AddedToken> tokens_;
  bool starts_[256] = {};
};

}  // namespace cbench
