// The final-number rule. Numbers are compared as canonical decimal strings: no rounding, no floats.
#include "eval/grading/gsm8k.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "eval/grading/stops.h"
#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

using std::string_view;

bool digit(char c) { return c >= '0' && c <= '9'; }
bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// A number in the text: canonical value, or no value when it must not be read as a number (a
/// fraction, a broken comma group, 1.2.3, 1e5).
struct Number {
  size_t begin = 0, end = 0;
  std::optional<std::string> value;
};

/// Length of a group separator at `at`; 0 if there is none. `soft`: a blank, which may also simply
/// end the number.
size_t separator(string_view text, size_t at, bool& soft) {
  static constexpr std::array<string_view, 4> kHard = {"{,}", ",\\!", "\\,", ","};
  static constexpr std::array<string_view, 3> kSoft = {"\u00a0", "\u202f", "\u2009"};
  for (const string_view s : kHard) {
    if (text.substr(at).starts_with(s)) return soft = false, s.size();
  }
  for (const string_view s : kSoft) {
    if (text.substr(at).starts_with(s)) return soft = true, s.size();
  }
  return 0;
}

size_t digits_end(string_view text, size_t at) {
  while (at < text.size() && digit(text[at])) ++at;
  return at;
}

/// Reads the whole part with its groups from `at`; false if a group is broken.
bool read_whole(string_view text, size_t& at, std::string& digits) {
  size_t end = digits_end(text, at);
  digits.append(text.substr(at, end - at));
  bool groups_possible = end - at >= 1 && end - at <= 3;
  bool good = true;
  at = end;
  while (true) {
    bool soft = false;
    const size_t length = separator(text, at, soft);
    if (length == 0) return good;
    end = digits_end(text, at + length);
    const size_t group = end - (at + length);
    if (group == 0) return good;  // a comma of the sentence
    if (soft && (group != 3 || !groups_possible)) return good;
    good = good && groups_possible && group == 3;
    digits.append(text.substr(at + length, group));
    at = end;
    groups_possible = true;
  }
}

std::string canonical(bool negative, string_view whole, string_view fraction) {
  whole.remove_prefix(std::min(whole.find_first_not_of('0'), whole.size()));
  const size_t last = fraction.find_last_not_of('0');
  fraction = last == string_view::npos ? "" : fraction.substr(0, last + 1);
  std::string out = whole.empty() ? "0" : std::string(whole);
  if (!fraction.empty()) (out += '.') += fraction;
  return negative && out != "0" ? "-" + out : out;
}

/// Whether a minus stands before `at`, possibly with a currency sign between.
bool minus_before(string_view text, size_t at) {
  const auto strip = [&](string_view suffix) {
    const bool found = text.substr(0, at).ends_with(suffix);
    if (found) at -= suffix.size();
    return found;
  };
  if (strip("$")) strip("\\");
  if (!strip("-") && !strip("\u2212")) return false;
  // Behind a digit, a letter or a closing bracket it is a subtraction or a hyphen.
  return at == 0 || !(digit(text[at - 1]) || letter(text[at - 1]) || text[at - 1] == ')');
}

/// Marks that make the number at [begin, end) part of something else.
bool part_of_other(string_view text, size_t begin, size_t end) {
  const auto at = [&](size_t i) { return i < text.size() ? text[i] : '\0'; };
  if (at(end) == '/' && digit(at(end + 1))) return true;
  if (begin >= 2 && text[begin - 1] == '/' && (digit(text[begin - 2]) || text[begin - 2] == ')')) {
    return true;
  }
  if (text.substr(end).starts_with("}{")) return true;  // \frac{a}{b}
  if (text.substr(0, begin).ends_with("}{")) return true;
  if (at(end) == '.' && digit(at(end + 1))) return true;  // 1.2.3
  if ((at(end) == 'e' || at(end) == 'E') && (digit(at(end + 1)) || at(end + 1) == '+')) return true;
  return begin >= 2 && (text[begin - 1] == 'e' || text[begin - 1] == 'E') && digit(text[begin - 2]);
}

/// The next number at or behind `from`.
std::optional<Number> next_number(string_view text, size_t from) {
  for (size_t i = from; i < text.size(); ++i) {
    const bool point = text[i] == '.' && i + 1 < text.size() && digit(text[i + 1]);
    if (!digit(text[i]) && !point) continue;
    Number number;
    number.begin = i;
    std::string whole, fraction;
    size_t at = i;
    const bool good = point || read_whole(text, at, whole);
    if (at + 1 < text.size() && text[at] == '.' && digit(text[at + 1])) {
      const size_t end = digits_end(text, at + 1);
      fraction = text.substr(at + 1, end - at - 1);
      at = end;
    }
    number.end = at;
    if (good && !part_of_other(text, i, at)) {
      number.value = canonical(minus_before(text, i), whole, fraction);
    }
    return number;
  }
  return std::nullopt;
}

std::optional<Number> last_number(string_view text) {
  std::optional<Number> last, number = next_number(text, 0);
  while (number) {
    last = std::move(number);
    number = next_number(text, last->end);
  }
  return last;
}

/// What one anchor rule says: not there, or there with or without a readable number.
struct Finding {
  bool present = false;
  std::optional<std::string> value;
};

/// "#### N": of the anchors up to the first blank line behind the first one, the last with a
/// number. A finished answer ends at a blank line (shots are separated by one): what follows is not
/// it.
Finding hash_anchor(string_view text) {
  constexpr string_view kAnchor = "####";
  Finding finding;
  size_t at = text.find(kAnchor);
  if (at == string_view::npos) return finding;
  finding.present = true;
  text = text.substr(0, text.find("\n\n", at));
  size_t line_end = 0;
  while (at != string_view::npos) {
    // Up to the end of the line or the next anchor: every byte is read once.
    const size_t begin = at + kAnchor.size();
    at = text.find(kAnchor, begin);
    if (line_end < begin) line_end = std::min(text.find('\n', begin), text.size());
    const size_t end = std::min(line_end, at);
    const auto number = next_number(text.substr(begin, end - begin), 0);
    if (number) finding.value = number->value;
  }
  return finding;
}

/// How many boxes or phrases without a number are looked at, from the last one back: a hostile text
/// must not cost its length squared.
constexpr int kTries = 20;

/// The last \boxed{...} that holds a number; the last number in it.
Finding boxed(string_view text) {
  constexpr string_view kBox = "\\boxed{";
  int tries = kTries;
  for (size_t at = text.rfind(kBox); at != string_view::npos && tries-- > 0;
       at = at == 0 ? string_view::npos : text.rfind(kBox, at - 1)) {
    const size_t begin = at + kBox.size();
    int depth = 1;
    size_t end = begin;
    for (; end < text.size() && depth > 0; ++end) depth += (text[end] == '{') - (text[end] == '}');
    if (depth != 0) continue;
    const auto number = last_number(text.substr(begin, end - 1 - begin));
    if (number) return {true, number->value};
  }
  return {};
}

/// The last "the (final) answer is", any case, with a number in the same sentence.
Finding phrase(string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  constexpr string_view kPhrase = "answer is";
  int tries = kTries;
  for (size_t at = lower.rfind(kPhrase); at != std::string::npos && tries-- > 0;
       at = at == 0 ? std::string::npos : lower.rfind(kPhrase, at - 1)) {
    const string_view before = string_view(lower).substr(0, at);
    if (!before.ends_with("the ") && !before.ends_with("the final ")) continue;
    string_view rest = text.substr(at + kPhrase.size());
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\n:*"), rest.size()));
    rest = rest.substr(0, std::min(rest.find('\n'), rest.find(". ")));
    if (const auto number = next_number(rest, 0)) return {true, number->value};
  }
  return {};
}

Finding anywhere(string_view text) {
  const auto number = last_number(text);
  return {true, number ? number->value : std::nullopt};
}

}  // namespace

Grade grade_gsm8k(string_view text, string_view gold) {
  const std::optional<Number> target = last_number(gold);
  if (!target || !target->value || gold.size() > 1000) {
    throw UsageError("gold", "GSM8K: '" + printable(gold) + "' is not a number");
  }
  if (text.size() > kMaxAnswerBytes) return {false, "", "too_long"};
  static const std::vector<std::string> kNextQuestion = {"Question:"};
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool thinks = first != string_view::npos && text.substr(first).starts_with("<think>");
  // A question inside the thinking is not the next item; elsewhere the cut comes first.
  if (thinks) text = after_thinking(text);
  text = cut_at_stop(text, kNextQuestion);
  text = after_thinking(text);
  for (Finding (*rule)(string_view) : {hash_anchor, boxed, phrase, anywhere}) {
    const Finding finding = rule(text);
    if (!finding.present) continue;
    if (!finding.value) break;
    const bool equal = *finding.value == *target->value;
    return {equal, finding.value->substr(0, 200), equal ? "equal" : "different"};
  }
  return {false, "", "no_number"};
}

std::string gsm8k_gold(string_view solution) {
  const size_t at = solution.find("#### ");
  if (at == string_view::npos || solution.find("####", at + 1) != string_view::npos) {
    throw UsageError("gold", "GSM8K: a solution needs exactly one '#### '");
  }
  std::string gold(solution.substr(at + 5));
  while (!gold.empty() && (gold.back() == '\n' || gold.back() == ' ')) gold.pop_back();
  const auto number = next_number(gold, 0);
  if (!number || !number->value || number->end != gold.size() || number->begin > 1) {
    throw UsageError("gold", "GSM8K: '" + printable(gold) + "' behind '#### ' is not a number");
  }
  return gold;
}

}  // namespace cbench
