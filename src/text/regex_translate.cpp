// Oniguruma (Ruby syntax) to PCRE2: see the table in text/regex.h.
#include <array>

#include "text/regex.h"
#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr std::string_view kSpaces =
    R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNoSpaces =
    R"(\x00-\x08\x0e-\x1f\x21-\x84\x86-\x9f\xa1-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr std::string_view kWord = R"(\p{L}\p{M}\p{N}\p{Pc})";
constexpr std::string_view kHex = "0-9a-fA-F";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_character(c);
      } else if (c == '[') {
        open_class();
      } else if (c == '(' && peek(1) == '?') {
        group();
      } else {
        copy(1);
      }
    }
    if (in_class_) refuse("an unclosed [");
    return std::move(out_);
  }

 private:
  char peek(size_t ahead) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  void copy(size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw UsageError("regex", "regular expression \"" + printable(pattern_) + "\" uses " + what +
                                  ", which is not supported");
  }

  void set(std::string_view members, bool negated) {
    if (!in_class_) {
      out_ += negated ? "[^" : "[";
      out_ += members;
      out_ += ']';
    } else {
      out_ += members;
    }
    at_ += 2;
  }

  void escape() {
    if (at_ + 1 == pattern_.size()) refuse("a \\ at its end");
    const char c = peek(1);
    if (c == 's') return set(kSpaces, false);
    if (c == 'S') return in_class_ ? set(kNoSpaces, false) : set(kSpaces, true);
    if (c == 'w') return set(kWord, false);
    if (c == 'h') return set(kHex, false);
    if (c == 'W' || c == 'H') {
      if (in_class_) refuse(std::string("\\") + c + " inside [...]");
      return set(c == 'W' ? kWord : kHex, true);
    }
    if (std::string_view("CKQEyYOXNRLUluc").find(c) != std::string_view::npos) {
      return shared_escape(c);
    }
    copy(2);
  }

  /// Escapes that only one engine knows, or that both know with different meanings.
  void shared_escape(char c) {
    if (c == 'u') {
      if (at_ + 6 > pattern_.size()) refuse("an incomplete \\u");
      out_ += "\\x{" + std::string(pattern_.substr(at_ + 2, 4)) + "}";
      at_ += 6;
    } else if (c == 'R' && !in_class_) {
      copy(2);
    } else {
      refuse(std::string("\\") + c);
    }
  }

  void open_class() {
    in_class_ = true;
    copy(1);
    if (peek(0) == '^') copy(1);
    if (peek(0) == ']') {
      out_ += '\\';
      copy(1);
    }
  }

  void class_character(char c) {
    if (c == ']') in_class_ = false;
    if (c == '&' && peek(1) == '&') refuse("&& inside [...]");
    if (c == '[') return nested_class();
    copy(1);
  }

  /// Only POSIX names ([:alpha:]) may follow a [ inside a class.
  void nested_class() {
    const size_t end = pattern_.find(":]", at_);
    if (peek(1) != ':' || end == std::string_view::npos) refuse("a class inside a class");
    copy(end + 2 - at_);
  }

  /// Group options: Ruby's m is PCRE2's s. Everything else after (? is spelt alike or refused.
  void group() {
    const char kind = peek(2);
    if (std::string_view(":=!>#").find(kind) != std::string_view::npos) return copy(3);
    if (kind == '<' || kind == '\'') return copy(3);
    copy(2);
    while (at_ < pattern_.size() && peek(0) != ':' && peek(0) != ')') {
      const char option = peek(0);
      if (std::string_view("imx-").find(option) == std::string_view::npos) {
        refuse(std::string("the group (?") + option);
      }
      out_ += option == 'm' ? 's' : option;
      ++at_;
    }
  }

  std::string_view pattern_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

std::string translate_oniguruma(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace cbench
