#include "text/pre_tokenizer.h"

#include "text/normalizer.h"
#include "text/pattern.h"
#include "text/unicode.h"
#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

/// What becomes of the matches of a splitting pattern.
enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior parse_behavior(const std::string& name, std::string_view source) {
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  throw UsageError("pre_tokenizer", std::string(source) + ": unknown split behavior \"" +
                                        printable(name) +
                                        "\" (Isolated, Removed, MergedWithPrevious, "
                                        "MergedWithNext, Contiguous)");
}

/// Turns matches into the stretches to keep, in place.
void apply_behavior(Behavior behavior, std::vector<Match>& matches) {
  std::vector<Match> kept;
  bool previous = false;
  const auto each = [&](const Match& match, bool merge, auto&& extend) {
    if (merge && !kept.empty()) {
      extend(kept.back());
    } else {
      kept.push_back(match);
    }
    previous = match.matched;
  };
  switch (behavior) {
    case Behavior::kIsolated:
      return;
    case Behavior::kRemoved:
      std::erase_if(matches, [](const Match& match) { return match.matched; });
      return;
    case Behavior::kContiguous:
      for (const Match& match : matches) {
        each(match, match.matched == previous, [&](Match& last) { last.end = match.end; });
      }
      break;
    case Behavior::kMergedWithPrevious:
      for (const Match& match : matches) {
        each(match, match.matched && !previous, [&](Match& last) { last.end = match.end; });
      }
      break;
    case Behavior::kMergedWithNext:
      for (auto match = matches.rbegin(); match != matches.rend(); ++match) {
        each(*match, match->matched && !previous, [&](Match& last) { last.begin = match->begin; });
      }
      kept = std::vector<Match>(kept.rbegin(), kept.rend());
      break;
  }
  matches = std::move(kept);
}

/// A pre-tokenizer that only cuts: `find` marks the matches, `behavior` says what becomes of them.
class Splitter : public PreTokenizer {
 public:
  Splitter(Behavior behavior, bool invert) : behavior_(behavior), invert_(invert) {}

  void apply(Pieces& pieces) const override {
    std::vector<Match> matches;
    pieces.next.clear();
    for (const Pieces::Piece& piece : pieces.pieces) {
      find(pieces.view(piece), matches);
      if (invert_) {
        for (Match& match : matches) match.matched = !match.matched;
      }
      apply_behavior(behavior_, matches);
      for (const Match& match : matches) {
        if (match.begin == match.end) continue;
        pieces.next.push_back({piece.begin + static_cast<uint32_t>(match.begin),
                               piece.begin + static_cast<uint32_t>(match.end),
                               piece.at_start && match.begin == 0});
      }
    }
    pieces.pieces.swap(pieces.next);
  }

 protected:
  virtual void find(std::string_view text, std::vector<Match>& matches) const = 0;

 private:
  Behavior behavior_;
  bool invert_;
};

class PatternSplit : public Splitter {
 public:
  PatternSplit(Pattern pattern, Behavior behavior, bool invert)
      : Splitter(behavior, invert), pattern_(std::move(pattern)) {}

 private:
  void find(std::string_view text, std::vector<Match>& matches) const override {
    pattern_.find(text, matches);
  }
  Pattern pattern_;
};

/// Every character of a class is a match of its own.
class ClassSplit : public Splitter {
 public:
  using Predicate = bool (*)(uint32_t);
  ClassSplit(Predicate contains, Behavior behavior)
      : Splitter(behavior, false), contains_(contains) {}

 private:
  void find(std::string_view text, std::vector<Match>& matches) const override {
    matches.clear();
    size_t previous = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t end = at + utf8_length(text[at]);
      if (contains_(first_code_point(text.substr(at)))) {
        if (previous < at) matches.push_back({previous, at, false});
        matches.push_back({at, end, true});
        previous = end;
      }
      at = end;
    }
    if (previous < text.size()) matches.push_back({previous, text.size(), false});
  }
  Predicate contains_;
};

/// Base of the steps that change text: copies every piece through `rewrite` into a new buffer.
class Rewriter : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    std::string text;
    text.reserve(pieces.text.size() * 2);
    for (Pieces::Piece& piece : pieces.pieces) {
      const size_t begin = text.size();
      rewrite(pieces.view(piece), piece.at_start, text);
      if (text.size() > INT32_MAX) throw UsageError("too_large", "text too long to encode");
      piece.begin = static_cast<uint32_t>(begin);
      piece.end = static_cast<uint32_t>(text.size());
    }
    pieces.text = std::move(text);
  }

 protected:
  virtual void rewrite(std::string_view piece, bool at_start, std::string& out) const = 0;
};

class PrefixSpace : public Rewriter {
  void rewrite(std::string_view piece, bool, std::string& out) const override {
    if (!piece.starts_with(' ')) out += ' ';
    out += piece;
  }
};

class ByteLevelMap : public Rewriter {
  void rewrite(std::string_view piece, bool, std::string& out) const override {
    append_byte_level(out, piece);
  }
};

class MetaspaceReplace : public Rewriter {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  MetaspaceReplace(std::string replacement, Prepend prepend)
      : replacement_(std::move(replacement)), prepend_(prepend) {}

 private:
  void rewrite(std::string_view piece, bool at_start, std::string& out) const override {
    const bool wanted = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && at_start);
    if (wanted && !piece.starts_with(replacement_) && !piece.starts_with(' ')) out += replacement_;
    for (const char c : piece) {
      if (c == ' ') {
        out += replacement_;
      } else {
        out += c;
      }
    }
  }
  std::string replacement_;
  Prepend prepend_;
};

/// Builds the flat list of steps of a file.
class Builder {
 public:
  explicit Builder(std::string_view source) : source_(source) {}

  void add(const Json& config) {
    if (config.is_null()) return;
    const std::string type = json_string(config, "type", source_);
    if (type == "Sequence") {
      const Json& list = json_member(config, "pretokenizers", source_);
      if (!list.is_array()) {
        throw UsageError("json_type", source_ + ": \"pretokenizers\" must be an array");
      }
      for (const Json& step : list) add(step);
    } else if (type == "Split") {
      add_split(config);
    } else if (type == "ByteLevel") {
      add_byte_level(config);
    } else if (type == "Metaspace") {
      add_metaspace(config);
    } else {
      add_class(type, config);
    }
  }

  PreTokenizers take() {
    // The mapping of a final ByteLevel is the model's business.
    if (!list_.steps.empty() &&
        dynamic_cast<const ByteLevelMap*>(list_.steps.back().get()) != nullptr) {
      list_.steps.pop_back();
      list_.byte_level = true;
    }
    return std::move(list_);
  }

 private:
  template <typename Step, typename... Arguments>
  void push(Arguments&&... arguments) {
    list_.steps.push_back(std::make_unique<Step>(std::forward<Arguments>(arguments)...));
  }
  bool flag(const Json& config, const char* key, bool otherwise) const {
    return config.contains(key) && !config[key].is_null() ? json_bool(config, key, source_)
                                                          : otherwise;
  }
  Behavior behavior(const Json& config) const {
    return parse_behavior(json_string(config, "behavior", source_), source_);
  }

  void add_split(const Json& config) {
    Pattern pattern = Pattern::from_json(json_member(config, "pattern", source_), source_);
    push<PatternSplit>(std::move(pattern), behavior(config), flag(config, "invert", false));
  }

  void add_byte_level(const Json& config) {
    if (flag(config, "add_prefix_space", true)) push<PrefixSpace>();
    if (flag(config, "use_regex", true)) {
      push<PatternSplit>(Pattern(Regex(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+|)"
                                       R"( ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)")),
                         Behavior::kIsolated, false);
    }
    push<ByteLevelMap>();
  }

  void add_metaspace(const Json& config) {
    std::string replacement = json_string(config, "replacement", source_);
    if (replacement.empty() || utf8_length(replacement[0]) != replacement.size()) {
      throw UsageError("pre_tokenizer",
                       source_ + ": the Metaspace replacement must be 1 character");
    }
    const std::string scheme = config.contains("prepend_scheme")
                                   ? json_string(config, "prepend_scheme", source_)
                                   : "always";
    using Prepend = MetaspaceReplace::Prepend;
    Prepend prepend = Prepend::kAlways;
    if (scheme == "never" || !flag(config, "add_prefix_space", true)) {
      prepend = Prepend::kNever;
    } else if (scheme == "first") {
      prepend = Prepend::kFirst;
    } else if (scheme != "always") {
      unsupported_component("pre_tokenizer", scheme, "prepend_scheme always, first, never",
                            source_);
    }
    push<MetaspaceReplace>(replacement, prepend);
    if (flag(config, "split", true)) {
      push<PatternSplit>(Pattern::from_json(Json{{"String", replacement}}, source_),
                         Behavior::kMergedWithNext, false);
    }
  }

  void add_class(const std::string& type, const Json& config) {
    if (type == "Digits") {
      const bool single = flag(config, "individual_digits", false);
      push<ClassSplit>(is_numeric, single ? Behavior::kIsolated : Behavior::kContiguous);
    } else if (type == "Punctuation") {
      push<ClassSplit>(is_punctuation,
                       config.contains("behavior") ? behavior(config) : Behavior::kIsolated);
    } else if (type == "WhitespaceSplit") {
      push<ClassSplit>(is_space, Behavior::kRemoved);
    } else if (type == "Whitespace") {
      push<PatternSplit>(Pattern(Regex(std::string(kWordOrSymbolRuns), Regex::Syntax::kPcre2)),
                         Behavior::kRemoved, true);
    } else {
      unsupported_component("pre_tokenizer", type,
                            "Split, ByteLevel, Digits, Whitespace, WhitespaceSplit, Punctuation, "
                            "Metaspace, Sequence",
                            source_);
    }
  }

  /// \w+|[^\w\s]+ as Rust's regex crate reads it (Unicode TR18, annex C).
  static constexpr std::string_view kWordOrSymbolRuns =
      R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]+|)"
      R"([^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}\p{White_Space}]+)";

  std::string source_;
  PreTokenizers list_;
};

}  // namespace

PreTokenizers make_pre_tokenizers(const Json& config, std::string_view source) {
  Builder builder(source);
  builder.add(config);
  return builder.take();
}

}  // namespace cbench
