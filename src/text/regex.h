// Regular expressions of tokenizer files, run by PCRE2 (UTF, UCP, JIT) with bounded matching.
//
// The files are written for Oniguruma (Ruby syntax). Patterns are translated where the two engines
// read the same text differently; what cannot be translated is refused, never approximated:
//   \s \S    exactly White_Space (PCRE2 adds U+180E)
//   \w \W    L, M, N, Pc (PCRE2 10.42 leaves out the marks)
//   \h \H    hexadecimal digit (horizontal space in PCRE2)
//   (?m:     dot matches newline (PCRE2: s); ^ and $ always match at lines
//   && and nested classes inside [...]: refused
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace cbench {

/// One stretch of a text: a match, or what lies between two matches.
struct Match {
  size_t begin;
  size_t end;
  bool matched;
};

class Regex {
 public:
  enum class Syntax { kOniguruma, kPcre2 };

  /// Throws UsageError "regex" if the pattern does not compile or uses something unsupported.
  explicit Regex(std::string_view pattern, Syntax syntax = Syntax::kOniguruma);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  /// The successive matches in well-formed `text`, leftmost first, with Oniguruma's rule for empty
  /// ones: none directly behind the previous match. Throws UsageError "regex_limit" when one match
  /// needs more than the bounded effort. Thread-safe.
  template <typename Visitor>
  void each_match(std::string_view text, Visitor&& visit) const {
    size_t from = 0;
    size_t last_end = std::string_view::npos;
    size_t begin = 0;
    size_t end = 0;
    while (from <= text.size() && find(text, from, begin, end)) {
      if (begin == end && end == last_end) {
        from = next_char(text, from);
        continue;
      }
      visit(begin, end);
      from = last_end = end;
    }
  }

  /// True if the pattern matches somewhere in `text`.
  bool search(std::string_view text) const;

 private:
  struct Code;
  bool find(std::string_view text, size_t from, size_t& begin, size_t& end) const;
  static size_t next_char(std::string_view text, size_t at);

  std::unique_ptr<Code> code_;
};

/// The PCRE2 form of an Oniguruma pattern. Throws UsageError "regex".
std::string translate_oniguruma(std::string_view pattern);

}  // namespace cbench
