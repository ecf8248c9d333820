// The `pattern` of Split and Replace: a literal string or a regular expression.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/regex.h"
#include "util/json.h"

namespace cbench {

class Pattern {
 public:
  explicit Pattern(Regex regex) : pattern_(std::move(regex)) {}
  /// {"String": s} (always literal, even if it looks like a regular expression) or {"Regex": r}.
  static Pattern from_json(const Json& config, std::string_view source);

  /// Cuts `text` into matches and what lies between them; together they cover it. An empty text is
  /// one unmatched stretch.
  void find(std::string_view text, std::vector<Match>& matches) const;

  /// Every match replaced by `content`, which is taken literally. `at_start` turns false when
  /// nothing of the first character is left: a match there is dropped, or longer than it.
  void replace(std::string& text, std::string_view content, bool& at_start) const;

 private:
  explicit Pattern(std::string literal) : pattern_(std::move(literal)) {}

  /// visit(begin, end) for every match; an empty text has none.
  template <typename Visitor>
  void each_match(std::string_view text, Visitor&& visit) const {
    if (text.empty()) return;
    const auto* literal = std::get_if<std::string>(&pattern_);
    if (literal == nullptr) return std::get<Regex>(pattern_).each_match(text, visit);
    for (size_t at = text.find(*literal); at != text.npos;) {
      visit(at, at + literal->size());
      at = text.find(*literal, at + literal->size());
    }
  }

  std::variant<std::string, Regex> pattern_;
};

}  // namespace cbench
