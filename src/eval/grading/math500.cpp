// Comparison of two answers: as lists, tuples, intervals, sets, matrices; their elements as values.
#include "eval/grading/math500.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "eval/grading/math_latex.h"
#include "eval/grading/math_value.h"
#include "util/text.h"

namespace cbench {
namespace {

using std::string_view;
constexpr size_t kMaxBoxBytes = 2000;  // the longest gold has 60

bool digit(char c) { return c >= '0' && c <= '9'; }
bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// "1,234,567.8" as a whole is one number: "1234567.8".
std::string drop_thousands(const std::string& text) {
  std::string out;
  size_t at = !text.empty() && text[0] == '-';
  const size_t first = at;
  const auto run = [&] {
    const size_t begin = at;
    while (at < text.size() && digit(text[at])) ++at;
    return at - begin;
  };
  const size_t head = run();
  if (head < 1 || head > 3 || at >= text.size() || text[at] != ',') return text;
  while (at < text.size() && text[at] == ',') {
    ++at;
    if (run() != 3) return text;
  }
  if (at < text.size() && text[at] == '.') {
    ++at;
    run();
  }
  if (at != text.size()) return text;
  for (const char c : text) {
    if (c != ',') out += c;
  }
  return first == 1 && out == "-" ? text : out;
}

/// "x=5" and "x\in[1,2]" mean what stands behind, when one short name stands before.
std::string drop_name(const std::string& text) {
  size_t name = 0;
  while (name < text.size() && letter(text[name])) ++name;
  if (name == 0 || name > 2) return text;
  if (text.compare(name, 1, "=") == 0) return text.substr(name + 1);
  if (text.compare(name, 3, "\\in") == 0 && !letter(text[std::min(name + 3, text.size() - 1)])) {
    return text.substr(name + 3);
  }
  return text;
}

/// A number literal in one spelling ("-0.50" -> "-.5"), or nothing.
std::optional<std::string> literal(string_view text) {
  const bool negative = text.starts_with('-');
  text.remove_prefix(negative);
  const size_t point = text.find('.');
  string_view whole = text.substr(0, point);
  string_view fraction = point == string_view::npos ? "" : text.substr(point + 1);
  if (whole.empty() && fraction.empty()) return std::nullopt;
  if (!std::ranges::all_of(whole, digit) || !std::ranges::all_of(fraction, digit)) {
    return std::nullopt;
  }
  whole.remove_prefix(std::min(whole.find_first_not_of('0'), whole.size()));
  fraction = fraction.substr(0, fraction.find_last_not_of('0') + 1);
  std::string out(whole);
  if (!fraction.empty()) (out += '.') += fraction;
  if (out.empty()) return "0";
  return negative ? "-" + out : out;
}

bool integer(const std::optional<std::string>& number) {
  return number && number->find('.') == std::string::npos;
}

/// "\frac{a}{b}", "a/b" with whole a and b: "a/b" with the sign in front; else nothing.
std::optional<std::string> plain_fraction(const std::string& text) {
  std::string top, bottom;
  const bool negative = text.starts_with('-');
  const std::string body = text.substr(negative);
  constexpr string_view kFrac = "\\frac{";
  if (body.starts_with(kFrac)) {
    const size_t middle = body.find("}{");
    if (middle == std::string::npos || !body.ends_with('}')) return std::nullopt;
    top = body.substr(kFrac.size(), middle - kFrac.size());
    bottom = body.substr(middle + 2, body.size() - middle - 3);
  } else {
    const size_t slash = body.find('/');
    if (slash == std::string::npos) return std::nullopt;
    top = body.substr(0, slash);
    bottom = body.substr(slash + 1);
  }
  const auto t = literal(top), b = literal(bottom);
  if (!integer(t) || !integer(b)) return std::nullopt;
  const bool flips = t->starts_with('-');
  return std::string(negative != flips ? "-" : "") + t->substr(flips) + "/" + *b;
}

bool element_equal(const std::string& a, const std::string& gold) {
  if (a == gold) return true;
  const auto a_number = literal(a), gold_number = literal(gold);
  if (a_number && gold_number) return *a_number == *gold_number;
  // A whole gold wants a number, not a sum to be worked out; a fraction must be in lowest terms.
  if (integer(gold_number) || integer(a_number)) return false;
  const auto a_fraction = plain_fraction(a), gold_fraction = plain_fraction(gold);
  if (a_fraction && gold_fraction) return *a_fraction == *gold_fraction;
  const std::vector<std::string> a_sides = split_top_level(a, "=");
  const std::vector<std::string> gold_sides = split_top_level(gold, "=");
  if (a_sides.size() != gold_sides.size() || a_sides.size() > 2) return false;
  for (size_t i = 0; i < a_sides.size(); ++i) {
    if (!same_value(a_sides[i], gold_sides[i])) return false;
  }
  return true;
}

bool equal(std::string a, std::string gold, int depth);

/// Each element of one list has its partner in the other; order does not matter.
bool lists_equal(std::vector<std::string> a, const std::vector<std::string>& gold, int depth) {
  if (a.size() != gold.size() || a.size() > 50) return false;
  for (const std::string& wanted : gold) {
    const auto found = std::ranges::find_if(
        a, [&](const std::string& have) { return equal(have, wanted, depth); });
    if (found == a.end()) return false;
    a.erase(found);
  }
  return true;
}

bool all_equal(const std::vector<std::string>& a, const std::vector<std::string>& gold, int depth) {
  return a.size() == gold.size() && a.size() <= 50 &&
         std::ranges::equal(a, gold, [&](const std::string& x, const std::string& y) {
           return equal(x, y, depth);
         });
}

/// {environment, body} of "\begin{pmatrix}body\end{pmatrix}".
std::optional<std::pair<std::string, std::string>> matrix(const std::string& text) {
  constexpr string_view kBegin = "\\begin{";
  if (!text.starts_with(kBegin)) return std::nullopt;
  const std::string name = text.substr(kBegin.size(), text.find('}') - kBegin.size());
  const std::string open = "\\begin{" + name + "}", close = "\\end{" + name + "}";
  if (text.size() < open.size() + close.size() || !text.ends_with(close)) return std::nullopt;
  return std::pair(name, text.substr(open.size(), text.size() - open.size() - close.size()));
}

/// Whether `text` is one bracket pair around the rest: "(a,b]" but not "(a)(b)".
bool bracketed(const std::string& text) {
  if (text.size() < 2 || (text.front() != '(' && text.front() != '[')) return false;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    depth += text[i] == '(' || text[i] == '[' || text[i] == '{';
    depth -= text[i] == ')' || text[i] == ']' || text[i] == '}';
    if (depth == 0) return i + 1 == text.size() && text.back() != '}';
  }
  return false;
}

/// "a\pm b" stands for two values.
std::vector<std::string> expand_signs(const std::vector<std::string>& parts) {
  std::vector<std::string> out;
  for (const std::string& part : parts) {
    const size_t at = part.find("\\pm");
    if (at == std::string::npos) {
      out.push_back(part);
    } else {
      out.push_back(part.substr(0, at) + (at == 0 ? "" : "+") + part.substr(at + 3));
      out.push_back(part.substr(0, at) + "-" + part.substr(at + 3));
    }
  }
  return out;
}

/// "(C)" and "C".
std::string choice(const std::string& text) {
  const bool wrapped = text.size() == 3 && text[0] == '(' && text[2] == ')';
  const std::string inner = wrapped ? text.substr(1, 1) : text;
  return inner.size() == 1 && inner[0] >= 'A' && inner[0] <= 'Z' ? inner : "";
}

bool equal(std::string a, std::string gold, int depth) {
  if (a.empty() || depth > 4) return false;
  if (a == gold) return true;
  a = drop_thousands(drop_name(a));
  gold = drop_thousands(drop_name(gold));
  if (a == gold) return true;
  if (!choice(gold).empty() && choice(a) == choice(gold)) return true;
  const auto a_matrix = matrix(a), gold_matrix = matrix(gold);
  if (a_matrix || gold_matrix) {
    if (!a_matrix || !gold_matrix || a_matrix->first != gold_matrix->first) return false;
    std::vector<std::string> a_cells, gold_cells;
    for (const auto& [cells, body] :
         {std::pair(&a_cells, a_matrix->second), std::pair(&gold_cells, gold_matrix->second)}) {
      for (const std::string& row : split_top_level(body, "\\\\")) {
        for (std::string& cell : split_top_level(row, "&")) cells->push_back(std::move(cell));
        cells->emplace_back("row");
      }
    }
    return all_equal(a_cells, gold_cells, depth + 1);
  }
  const std::vector<std::string> unions = split_top_level(gold, "\\cup");
  if (unions.size() > 1) return lists_equal(split_top_level(a, "\\cup"), unions, depth + 1);
  const auto set = [](const std::string& s) {
    return s.starts_with("\\{") && s.ends_with("\\}") && s.size() >= 4;
  };
  if (set(gold) && set(a)) {
    gold = gold.substr(2, gold.size() - 4);
    a = a.substr(2, a.size() - 4);
  } else if (bracketed(gold) && bracketed(a) && gold.find(',') != std::string::npos) {
    if (a.front() != gold.front() || a.back() != gold.back()) return false;
    return all_equal(split_top_level(a.substr(1, a.size() - 2), ","),
                     split_top_level(gold.substr(1, gold.size() - 2), ","), depth + 1);
  }
  const auto a_parts = expand_signs(split_top_level(a, ","));
  const auto gold_parts = expand_signs(split_top_level(gold, ","));
  if (gold_parts.size() > 1 || a_parts.size() > 1) {
    return lists_equal(a_parts, gold_parts, depth + 1);
  }
  return element_equal(a, gold);
}

}  // namespace

bool math_equal(string_view answer, string_view gold) {
  if (answer.size() > kMaxBoxBytes || gold.size() > kMaxBoxBytes) return false;
  return equal(latex_canonical(answer), latex_canonical(gold), 0);
}

Grade grade_math500(string_view text, string_view gold) {
  if (text.size() > kMaxAnswerBytes) return {false, "", "too_long"};
  const std::optional<std::string> box = last_box(after_thinking(text));
  if (!box) return {false, "", "no_box"};
  const std::string shown = box->substr(0, complete_utf8_prefix(string_view(*box).substr(0, 200)));
  if (box->size() > kMaxBoxBytes) return {false, shown, "too_long"};
  const bool same = math_equal(*box, gold);
  return {same, shown, same ? "equal" : box->empty() ? "empty" : "different"};
}

}  // namespace cbench
