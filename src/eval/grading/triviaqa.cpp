// Normalization over code points, with Python's notions of lower case, blank and word.
#include "eval/grading/triviaqa.h"

#include <algorithm>

#include <utf8proc.h>

#include "eval/grading/stops.h"
#include "util/text.h"

namespace cbench {
namespace {

using Points = std::u32string;
constexpr size_t kMaxLineBytes = 10'000;  // 24 tokens are far shorter

Points decode(std::string_view text) {
  Points out;
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  auto left = static_cast<utf8proc_ssize_t>(text.size());
  while (left > 0) {
    utf8proc_int32_t point = 0;
    const utf8proc_ssize_t n = utf8proc_iterate(at, left, &point);
    if (n <= 0) break;  // cannot happen: the text was repaired
    out += static_cast<char32_t>(point);
    at += n;
    left -= n;
  }
  return out;
}

std::string encode(const Points& points) {
  std::string out;
  for (const char32_t point : points) {
    utf8proc_uint8_t buffer[4];
    const utf8proc_ssize_t n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(point), buffer);
    out.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(n));
  }
  return out;
}

utf8proc_category_t category(char32_t point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(point));
}

bool cased(char32_t point) {
  const utf8proc_category_t c = category(point);
  return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

bool case_ignorable(char32_t point) {
  const utf8proc_category_t c = category(point);
  return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
         c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK ||
         std::u32string_view(U"'.:\u00b7\u2018\u2019\u2024\u2027").find(point) != Points::npos;
}

/// Unicode's Final_Sigma condition at `at`.
bool final_sigma(const Points& text, size_t at) {
  size_t before = at;
  while (before > 0 && case_ignorable(text[before - 1])) --before;
  if (before == 0 || !cased(text[before - 1])) return false;
  size_t after = at + 1;
  while (after < text.size() && case_ignorable(text[after])) ++after;
  return after == text.size() || !cased(text[after]);
}

/// Full lower-casing: simple mappings, U+0130 to two code points, the final sigma.
Points lower(const Points& text) {
  Points out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == U'\u0130') {
      out += U"i\u0307";
    } else if (text[i] == U'\u03a3') {
      out += final_sigma(text, i) ? U'\u03c2' : U'\u03c3';
    } else {
      out += static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(text[i])));
    }
  }
  return out;
}

bool punctuation(char32_t c) {
  const bool ascii = (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
                     (c >= '{' && c <= '~');
  return ascii || c == U'\u2018' || c == U'\u2019' || c == U'\u00b4';
}

/// str.isspace of Python 3.
bool blank(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

/// \w of Python's re: letters and numbers (the underscore has become a blank by then).
bool word(char32_t c) {
  const utf8proc_category_t k = category(c);
  return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
         (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

/// re.sub(r'\b(a|an|the)\b', ' ', text)
Points drop_articles(const Points& text) {
  Points out;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && word(text[end])) ++end;
    const std::u32string_view token(text.data() + i, end - i);
    if (token.empty()) {
      out += text[i++];
      continue;
    }
    out += token == U"a" || token == U"an" || token == U"the" ? std::u32string_view(U" ") : token;
    i = end;
  }
  return out;
}

Points squeeze_blanks(const Points& text) {
  Points out;
  for (const char32_t c : text) {
    if (!blank(c)) {
      out += c;
    } else if (!out.empty() && out.back() != U' ') {
      out += U' ';
    }
  }
  if (!out.empty() && out.back() == U' ') out.pop_back();
  return out;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

}  // namespace

std::string triviaqa_normalize(std::string_view text) {
  Points points = lower(decode(repair_utf8(text)));
  // The underscore is among the punctuation; the script's separate step for it changes nothing.
  for (char32_t& c : points) {
    if (punctuation(c)) c = U' ';
  }
  return encode(squeeze_blanks(drop_articles(points)));
}

Grade grade_triviaqa(std::string_view text, const std::vector<std::string>& aliases) {
  if (text.size() > kMaxAnswerBytes) return {false, "", "too_long"};
  static const std::vector<std::string> kEnd = {"\n",         "<|endoftext|>",   "<|im_end|>",
                                                "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>",
                                                "</s>",       "<end_of_turn>",   "<eos>"};
  const std::string_view line = cut_at_stop(text, kEnd);
  if (line.size() > kMaxLineBytes) return {false, "", "too_long"};
  const std::string answer = triviaqa_normalize(line);
  if (answer.empty()) {
    // What normalizes to nothing ("(a" is a real gold) matches an alias only as it is written.
    const std::string_view raw = trimmed(line);
    const bool same = !raw.empty() && std::ranges::any_of(aliases, [&](const std::string& alias) {
      return trimmed(alias) == raw;
    });
    return {same, same ? std::string(raw) : "", same ? "verbatim" : "empty"};
  }
  const bool equal = std::ranges::any_of(
      aliases, [&](const std::string& alias) { return triviaqa_normalize(alias) == answer; });
  return {equal, answer.substr(0, complete_utf8_prefix(answer.substr(0, 200))),
          equal ? "equal" : "different"};
}

}  // namespace cbench
