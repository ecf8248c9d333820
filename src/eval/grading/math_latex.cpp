// One pass over the text with the few LaTeX commands that answers use.
#include "eval/grading/math_latex.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

namespace cbench {
namespace {

using std::string_view;

struct TooDeep : std::runtime_error {
  TooDeep() : std::runtime_error("nested too deeply") {}
};

bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool digit(char c) { return c >= '0' && c <= '9'; }
bool blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

template <size_t N>
bool one_of(string_view word, const std::array<string_view, N>& words) {
  return std::ranges::find(words, word) != words.end();
}

constexpr std::array<string_view, 24> kDropped = {
    "left", "right", "big",          "Big",       "bigl",   "bigr", "Bigl", "Bigr", "bigg", "Bigg",
    "quad", "qquad", "displaystyle", "textstyle", "limits", "!",    ",",    ";",    ":",    " ",
    "$",    "%",     "circ",         "degree"};
constexpr std::array<string_view, 11> kText = {"text",   "mbox",   "hbox",        "textbf",
                                               "textit", "textrm", "textnormal",  "mathrm",
                                               "mathbf", "mathit", "operatorname"};
constexpr std::array<std::pair<string_view, string_view>, 12> kRenamed = {{{"dfrac", "\\frac"},
                                                                           {"tfrac", "\\frac"},
                                                                           {"cfrac", "\\frac"},
                                                                           {"cdot", "*"},
                                                                           {"times", "*"},
                                                                           {"div", "/"},
                                                                           {"le", "\\leq"},
                                                                           {"ge", "\\geq"},
                                                                           {"ne", "\\neq"},
                                                                           {"lbrace", "\\{"},
                                                                           {"rbrace", "\\}"},
                                                                           {"mp", "\\pm"}}};
constexpr std::array<std::pair<string_view, string_view>, 10> kSymbols = {{{"\u2212", "-"},
                                                                           {"\u03c0", "\\pi"},
                                                                           {"\u221e", "\\infty"},
                                                                           {"\u221a", "\\sqrt"},
                                                                           {"\u00d7", "*"},
                                                                           {"\u00b7", "*"},
                                                                           {"\u222a", "\\cup"},
                                                                           {"\u00b0", ""},
                                                                           {"\u00a0", ""},
                                                                           {"{,}", ","}}};

/// The index behind the group that opens at `open` ('{'), or npos.
size_t group_end(string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return string_view::npos;
}

class Canonical {
 public:
  Canonical(string_view text, int depth) : text_(text), depth_(depth) {
    if (depth > 32) throw TooDeep();
  }

  std::string run() {
    while (at_ < text_.size()) step();
    return std::move(out_);
  }

 private:
  void step() {
    for (const auto& [from, to] : kSymbols) {
      if (text_.substr(at_).starts_with(from)) {
        at_ += from.size();
        if (to == "\\sqrt") return command("sqrt");
        out_ += to;
        return;
      }
    }
    const char c = text_[at_++];
    if (c == '\\') return command(command_name());
    if (c == '^' || c == '_') return script(c);
    if (blank(c)) return space();
    if (c == '$' || c == '%' || c == '~') return;
    if (letter(c) && ends_with_command()) out_ += ' ';
    out_ += c;
  }

  /// A blank means something only between two digits ("3 1/2").
  void space() {
    skip_blanks();
    if (!out_.empty() && digit(out_.back()) && at_ < text_.size() && digit(text_[at_])) out_ += ' ';
  }

  bool ends_with_command() const {
    size_t i = out_.size();
    while (i > 0 && letter(out_[i - 1])) --i;
    return i > 0 && i < out_.size() && out_[i - 1] == '\\';
  }

  void skip_blanks() {
    while (at_ < text_.size() && blank(text_[at_])) ++at_;
  }

  string_view command_name() {
    const size_t begin = at_;
    while (at_ < text_.size() && letter(text_[at_])) ++at_;
    if (at_ == begin && at_ < text_.size()) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  /// The next argument in canonical form, without its braces.
  std::string argument() {
    skip_blanks();
    if (at_ >= text_.size()) return "";
    size_t end = at_ + 1;
    if (text_[at_] == '{') {
      end = group_end(text_, at_);
      if (end == string_view::npos) end = text_.size();
      const size_t begin = std::exchange(at_, end) + 1;
      const size_t length = std::max(end, begin + 1) - 1 - begin;
      return Canonical(text_.substr(begin, length), depth_ + 1).run();
    }
    if (text_[at_] == '\\') {
      const size_t begin = at_++;
      command_name();
      return Canonical(text_.substr(begin, at_ - begin), depth_ + 1).run();
    }
    return std::string(1, text_[std::exchange(at_, end)]);
  }

  void script(char mark) {
    const std::string inner = argument();
    if (inner.empty()) return;  // ^\circ
    out_ += mark;
    out_ += "{" + inner + "}";
  }

  void command(string_view name) {
    if (one_of(name, kDropped)) return;
    if (one_of(name, kText)) return text_group();
    if (name == "frac" || name == "dfrac" || name == "tfrac" || name == "cfrac") {
      const std::string top = argument();
      out_ += "\\frac{" + top + "}{" + argument() + "}";
      return;
    }
    if (name == "sqrt") return square_root();
    for (const auto& [from, to] : kRenamed) {
      if (name == from) {
        out_ += to;
        return;
      }
    }
    out_ += '\\';
    out_ += name;
  }

  void square_root() {
    skip_blanks();
    out_ += "\\sqrt";
    if (at_ < text_.size() && text_[at_] == '[') {
      const size_t close = std::min(text_.find(']', at_), text_.size() - 1);
      out_ += text_.substr(at_, close + 1 - at_);
      at_ = close + 1;
    }
    skip_blanks();
    if (at_ < text_.size() && text_[at_] == '(') {  // sqrt(13), a spelling outside LaTeX
      size_t close = at_;
      for (int depth = 0; close < text_.size(); ++close) {
        depth += (text_[close] == '(') - (text_[close] == ')');
        if (depth == 0) break;
      }
      const size_t begin = at_ + 1;
      at_ = std::min(close + 1, text_.size());
      const size_t length = close > begin ? close - begin : 0;
      out_ += "{" + Canonical(text_.substr(begin, length), depth_ + 1).run() + "}";
      return;
    }
    out_ += "{" + argument() + "}";
  }

  /// \text{...}: a unit behind a value is dropped with its exponent, anything else is unwrapped.
  void text_group() {
    const bool after_value = !out_.empty() && (digit(out_.back()) || letter(out_.back()) ||
                                               out_.back() == '}' || out_.back() == ')');
    const std::string inner = argument();
    const size_t before = at_;
    skip_blanks();
    if (at_ < text_.size() && text_[at_] == '^') {
      ++at_;
      argument();
      skip_blanks();
    }
    if (after_value && at_ >= text_.size()) return;
    at_ = before;
    out_ += inner;
  }

  string_view text_;
  int depth_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::optional<std::string> last_box(string_view text) {
  size_t at = string_view::npos, begin = 0;
  for (const string_view name : {"\\boxed", "\\fbox"}) {
    const size_t found = text.rfind(name);
    if (found == string_view::npos || (at != string_view::npos && found < at)) continue;
    at = found;
    begin = found + name.size();
  }
  if (at == string_view::npos) return std::nullopt;
  const size_t open = text.find_first_not_of(" \t", begin);
  if (open == string_view::npos) return std::nullopt;
  if (text[open] != '{') {  // "\boxed 7$"
    const size_t end = text.find_first_of("$\n", open);
    return std::string(text.substr(open, end == string_view::npos ? end : end - open));
  }
  const size_t end = group_end(text, open);
  if (end == string_view::npos) return std::nullopt;
  return std::string(text.substr(open + 1, end - open - 2));
}

std::string latex_canonical(string_view text) {
  try {
    std::string out = Canonical(text, 0).run();
    while (!out.empty() && (out.back() == '.' || out.back() == ' ')) out.pop_back();
    return out;
  } catch (const TooDeep&) {
    return std::string(text);
  }
}

std::vector<std::string> split_top_level(string_view text, string_view separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (size_t i = 0; i < text.size();) {
    if (depth == 0 && text.substr(i).starts_with(separator)) {
      parts.emplace_back();
      i += separator.size();
      continue;
    }
    const char c = text[i];
    const bool escaped = i > 0 && text[i - 1] == '\\' && (c == '\\');
    if (!escaped) {
      depth += c == '{' || c == '(' || c == '[';
      depth -= c == '}' || c == ')' || c == ']';
    }
    parts.back() += c;
    ++i;
  }
  return parts;
}

}  // namespace cbench
