#include "text/added_tokens.h"

#include <algorithm>

#include "text/regex.h"
#include "text/unicode.h"

namespace cbench {
namespace {

/// Word characters as Rust's regex crate reads \w.
bool is_word(std::string_view character) {
  static const Regex word(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])",
                          Regex::Syntax::kPcre2);
  return word.search(character);
}

bool word_before(std::string_view text, size_t at) {
  if (at == 0) return false;
  const size_t length = last_char_length(text.substr(0, at));
  return is_word(text.substr(at - length, length));
}

bool word_behind(std::string_view text, size_t at) {
  return at < text.size() && is_word(text.substr(at, utf8_length(text[at])));
}

size_t skip_spaces_back(std::string_view text, size_t at, size_t floor) {
  while (at > floor) {
    const size_t length = last_char_length(text.substr(0, at));
    if (!is_space(first_code_point(text.substr(at - length)))) break;
    at -= length;
  }
  return std::max(at, floor);
}

size_t skip_spaces(std::string_view text, size_t at) {
  while (at < text.size() && is_space(first_code_point(text.substr(at)))) {
    at += utf8_length(text[at]);
  }
  return at;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher() : nodes_(1) {}

const AddedTokenMatcher::Node* AddedTokenMatcher::child(const Node& node, char byte) const {
  const auto key = static_cast<uint8_t>(byte);
  const auto found = std::lower_bound(node.next.begin(), node.next.end(), key,
                                      [](const auto& edge, uint8_t k) { return edge.first < k; });
  return found != node.next.end() && found->first == key ? &nodes_[found->second] : nullptr;
}

void AddedTokenMatcher::add(std::string_view content, const AddedToken& token) {
  if (content.empty()) return;
  uint32_t at = 0;
  for (const char byte : content) {
    if (const Node* known = child(nodes_[at], byte)) {
      at = static_cast<uint32_t>(known - nodes_.data());
      continue;
    }
    const auto fresh = static_cast<uint32_t>(nodes_.size());
    nodes_.emplace_back();
    auto& next = nodes_[at].next;
    const std::pair<uint8_t, uint32_t> edge(static_cast<uint8_t>(byte), fresh);
    next.insert(std::lower_bound(next.begin(), next.end(), edge), edge);
    at = fresh;
  }
  starts_[static_cast<uint8_t>(content[0])] = true;
  if (nodes_[at].token >= 0) return;
  nodes_[at].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

size_t AddedTokenMatcher::longest(std::string_view text, int32_t& token) const {
  const Node* node = &nodes_[0];
  size_t best = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    node = child(*node, text[i]);
    if (node == nullptr) break;
    if (node->token >= 0) {
      best = i + 1;
      token = node->token;
    }
  }
  return best;
}

void AddedTokenMatcher::split(std::string_view text, const Visitor& visit) const {
  size_t done = 0;  // text before it has been handed out
  size_t at = 0;
  while (at < text.size() && !tokens_.empty()) {
    if (!starts_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    int32_t index = -1;
    const size_t length = longest(text.substr(at), index);
    if (length == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = at;
    size_t end = at + length;
    at = end;
    if (token.single_word && (word_before(text, begin) || word_behind(text, end))) continue;
    if (token.lstrip) begin = skip_spaces_back(text, begin, done);
    if (token.rstrip) end = skip_spaces(text, end);
    if (begin > done) visit(text.substr(done, begin - done), nullptr);
    visit({}, &token);
    done = end;
  }
  if (done < text.size()) visit(text.substr(done), nullptr);
}

}  // namespace cbench
