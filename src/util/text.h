// Small text helpers: UTF-8 validation and repair, near-match suggestions, safe printing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cbench {

/// True if `text` is well-formed UTF-8 (no surrogates, no overlong forms, up to U+10FFFF).
bool is_utf8(std::string_view text);

/// Each maximal ill-formed subpart becomes one U+FFFD (the Unicode Standard's recommended
/// practice).
std::string repair_utf8(std::string_view text);

/// Length of the longest prefix of `text` that does not end inside a character.
size_t complete_utf8_prefix(std::string_view text);

/// For error messages: valid UTF-8, control characters escaped, cut at `max_bytes` with an
/// ellipsis.
std::string printable(std::string_view text, size_t max_bytes = 200);

/// The candidate nearest to `word` by edit distance, or "" if none is near enough to be a typo.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace cbench
