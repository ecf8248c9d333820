#include "text/pattern.h"

#include "text/unicode.h"
#include "util/error.h"

namespace cbench {
namespace {

constexpr size_t kMaxReplaced = 256u << 20;

Regex named_regex(const std::string& pattern, std::string_view source) {
  try {
    return Regex(pattern);
  } catch (const UsageError& error) {
    throw UsageError(error.code(), std::string(source) + ": " + error.what());
  }
}

}  // namespace

Pattern Pattern::from_json(const Json& config, std::string_view source) {
  if (config.is_object() && config.size() == 1) {
    if (config.contains("Regex"))
      return Pattern(named_regex(json_string(config, "Regex", source), source));
    if (config.contains("String")) {
      std::string literal = json_string(config, "String", source);
      // The empty pattern matches between all characters, as in the engine the files are made for.
      if (literal.empty()) return Pattern(Regex(""));
      return Pattern(std::move(literal));
    }
  }
  throw UsageError("pattern", std::string(source) +
                                  ": \"pattern\" must be {\"String\": ...} or {\"Regex\": ...}");
}

void Pattern::find(std::string_view text, std::vector<Match>& matches) const {
  matches.clear();
  size_t previous = 0;
  if (text.empty()) matches.push_back({0, 0, false});
  each_match(text, [&](size_t begin, size_t end) {
    if (previous != begin) matches.push_back({previous, begin, false});
    matches.push_back({begin, end, true});
    previous = end;
  });
  if (previous != text.size()) matches.push_back({previous, text.size(), false});
}

void Pattern::replace(std::string& text, std::string_view content, bool& at_start) const {
  const auto* literal = std::get_if<std::string>(&pattern_);
  if (literal != nullptr && text.find(*literal) == text.npos) return;
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  size_t previous = 0;
  each_match(text, [&](size_t begin, size_t end) {
    if (begin == 0 && end > 0 && (content.empty() || end > utf8_length(text[0]))) at_start = false;
    out.append(text, previous, begin - previous);
    out += content;
    previous = end;
    // A replacement in every place must not blow a text up without bound.
    if (out.size() > kMaxReplaced) {
      throw UsageError("too_large", "replacing a pattern would make a text of more than " +
                                        std::to_string(kMaxReplaced) + " bytes");
    }
  });
  out.append(text, previous);
  text = std::move(out);
}

}  // namespace cbench
