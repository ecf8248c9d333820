#include "text/pattern.h"

#include <algorithm>

#include "util/error.h"

namespace cbench {
namespace {

constexpr size_t kMaxReplaced = 1u << 30;

}  // namespace

Pattern Pattern::from_json(const Json& config, std::string_view source) {
  if (config.is_object() && config.size() == 1) {
    if (config.contains("Regex")) return Pattern(Regex(json_string(config, "Regex", source)));
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
  const auto visit = [&](size_t begin, size_t end) {
    if (previous != begin) matches.push_back({previous, begin, false});
    matches.push_back({begin, end, true});
    previous = end;
  };
  if (text.empty()) {
    matches.push_back({0, 0, false});
  } else if (const auto* literal = std::get_if<std::string>(&pattern_)) {
    for (size_t at = text.find(*literal); at != text.npos; at = text.find(*literal, previous)) {
      visit(at, at + literal->size());
    }
  } else {
    std::get<Regex>(pattern_).each_match(text, visit);
  }
  if (previous != text.size()) matches.push_back({previous, text.size(), false});
}

void Pattern::replace(std::string& text, std::string_view content) const {
  const auto* literal = std::get_if<std::string>(&pattern_);
  if (literal != nullptr && text.find(*literal) == text.npos) return;
  std::vector<Match> matches;
  find(text, matches);
  // A replacement in every place must not blow a text up without bound.
  if (matches.size() * std::max<size_t>(content.size(), 1) > kMaxReplaced) {
    throw UsageError("too_large", "replacing a pattern would make a text of more than " +
                                      std::to_string(kMaxReplaced) + " bytes");
  }
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  for (const Match& match : matches) {
    if (match.matched) {
      out += content;
    } else {
      out.append(text, match.begin, match.end - match.begin);
    }
  }
  text = std::move(out);
}

}  // namespace cbench
