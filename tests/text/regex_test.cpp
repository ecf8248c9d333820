#include "text/regex.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/unicode.h"
#include "util/error.h"

namespace cbench {
namespace {

using testing::ElementsAre;

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  std::vector<std::string> all;
  Regex(pattern).each_match(
      text, [&](size_t begin, size_t end) { all.emplace_back(text.substr(begin, end - begin)); });
  return all;
}

/// \s of the translation is White_Space, on every code point and in all four forms.
TEST(Regex, SpacesAreOnigurumas) {
  const Regex space(R"(\A\s\z)");
  const Regex no_space(R"(\A\S\z)");
  const Regex in_class(R"(\A[\sx]\z)");
  const Regex no_space_in_class(R"(\A[\S\x20]\z)");
  int spaces = 0;
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    const bool want = is_space(c);
    spaces += want;
    ASSERT_EQ(space.search(text), want) << c;
    ASSERT_EQ(no_space.search(text), !want) << c;
    ASSERT_EQ(in_class.search(text), want || c == 'x') << c;
    ASSERT_EQ(no_space_in_class.search(text), !want || c == ' ') << c;
  }
  EXPECT_EQ(spaces, 25);
}

TEST(Regex, ReadsRubySyntax) {
  EXPECT_THAT(matches("^.", "ab\ncd"), ElementsAre("a", "c"));
  EXPECT_THAT(matches("(?m:b.)", "ab\ncd"), ElementsAre("b\n"));
  EXPECT_THAT(matches("b.", "ab\nb\rc"), ElementsAre("b\r"));
  EXPECT_THAT(matches(R"(\h+)", "x0Ff g"), ElementsAre("0Ff"));
  EXPECT_THAT(matches(R"(\w+)", "e\u0301_\u203F \u0663"), ElementsAre("e\u0301_\u203F", "\u0663"));
  EXPECT_THAT(matches("(?i:'s)", "'S'\u017F's"), ElementsAre("'S", "'\u017F", "'s"));
  EXPECT_THAT(matches("[[:alpha:]]+", "ab1\u00E9"), ElementsAre("ab", "\u00E9"));
  EXPECT_THAT(matches("x*", "axxb"), ElementsAre("", "xx", ""));
  EXPECT_THAT(matches("", "\u00E9a"), ElementsAre("", "", ""));
}

TEST(Regex, RefusesWhatItCannotTranslate) {
  for (const char* pattern : {"(", "[a", "a\\", "[a&&b]", "[a[bc]]", "[\\W]", "\\K", "a\\Kb", "\\X",
                              "(?L)", "(*ACCEPT)a(", "a{2,1}", "\\u12", "(?<=a+)b"}) {
    try {
      const Regex regex((std::string_view(pattern)));
      ADD_FAILURE() << pattern << " compiled";
    } catch (const UsageError& error) {
      EXPECT_EQ(error.code(), "regex") << pattern;
    }
  }
  EXPECT_THROW(Regex(std::string(1 << 20, 'a')), UsageError);
  EXPECT_THROW(Regex(std::string(10000, '(') + std::string(10000, ')')), UsageError);
}

TEST(Regex, BoundsEffort) {
  try {
    matches("(a+)+[bd]", std::string(64, 'a') + "c");
    ADD_FAILURE() << "no limit hit";
  } catch (const UsageError& error) {
    EXPECT_EQ(error.code(), "regex_limit");
  }
  // Honest patterns of tokenizers reach no limit on megabytes of one class.
  for (const char* pattern : {R"(\s+(?!\S)|\s+)", R"([^\r\n\p{L}\p{N}]?\p{L}+| )"}) {
    for (const char c : {' ', 'a'}) {
      EXPECT_NO_THROW(matches(pattern, std::string(4 << 20, c) + "x"));
    }
  }
}

}  // namespace
}  // namespace cbench
