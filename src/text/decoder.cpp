#include "text/decoder.h"

#include "text/normalizer.h"
#include "text/pattern.h"
#include "text/unicode.h"
#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// The end of every chain.
class Collect : public DecodeStage {
 public:
  void push(std::string_view fragment, bool) override { text_ += fragment; }
  std::string take() { return std::exchange(text_, {}); }

 private:
  std::string text_;
};

/// Base of the stages that look at whole tokens.
class WholeTokens : public DecodeStage {
 public:
  void push(std::string_view fragment, bool ends) override {
    if (ends && held_.empty()) return token(fragment);
    held_ += fragment;
    if (ends) token(std::exchange(held_, {}));
  }

 protected:
  virtual void token(std::string_view token) = 0;

 private:
  std::string held_;
};

/// No decoder: tokens with a blank between them.
class Join : public WholeTokens {
  void token(std::string_view token) override {
    if (!first_) emit(" ", false);
    emit(token, true);
    first_ = false;
  }
  bool first_ = true;
};

/// All tokens become one.
class Fuse : public DecodeStage {
 public:
  void push(std::string_view fragment, bool) override { emit(fragment, false); }
  void finish() override { emit({}, true); }
};

/// Byte-level alphabet to bytes, all tokens as one; an incomplete character waits for its rest.
class ByteLevelDecode : public WholeTokens {
 public:
  void finish() override { emit(repair_utf8(bytes_), true); }

 private:
  void token(std::string_view token) override {
    bytes_ += bytes_of_byte_level(token);
    const size_t ready = complete_utf8_prefix(bytes_);
    if (ready == 0) return;
    emit(repair_utf8(std::string_view(bytes_).substr(0, ready)), false);
    bytes_.erase(0, ready);
  }
  std::string bytes_;
};

/// Runs of <0xXX> tokens to bytes. A run counts as a whole: if it is not well-formed, each of its
/// bytes is one U+FFFD, so that nothing of it can be shown before it ends.
class ByteFallbackDecode : public WholeTokens {
 public:
  void finish() override { flush(); }

 private:
  static int byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    int value = 0;
    for (const char c : token.substr(3, 2)) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                               : -1;
      if (digit < 0) return -1;
      value = value * 16 + digit;
    }
    return value;
  }
  void token(std::string_view token) override {
    const int byte = byte_of(token);
    if (byte >= 0) {
      run_ += static_cast<char>(byte);
      return;
    }
    flush();
    emit(token, true);
  }
  void flush() {
    if (run_.empty()) return;
    if (is_utf8(run_)) {
      emit(run_, true);
    } else {
      for (size_t i = 0; i < run_.size(); ++i) emit(kReplacement, true);
    }
    run_.clear();
  }
  std::string run_;
};

/// Up to `start` leading and `stop` trailing characters equal to `content` leave every token.
class StripDecode : public DecodeStage {
 public:
  StripDecode(std::string content, size_t start, size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}

  void push(std::string_view fragment, bool ends) override {
    while (leading_ < start_ && fragment.starts_with(content_)) {
      fragment.remove_prefix(content_.size());
      ++leading_;
    }
    if (!fragment.empty()) leading_ = start_;
    // Of a trailing run only the last `stop` may still have to go.
    std::string text = std::exchange(held_, {}) + std::string(fragment);
    size_t keep = text.size();
    for (size_t i = 0; i < stop_ && std::string_view(text).substr(0, keep).ends_with(content_);
         ++i) {
      keep -= content_.size();
    }
    if (!ends) held_ = text.substr(keep);
    text.resize(keep);
    if (ends) leading_ = 0;
    if (ends || !text.empty()) emit(text, ends);
  }

 private:
  std::string content_;
  size_t start_;
  size_t stop_;
  size_t leading_ = 0;  ///< stripped from the current token so far
  std::string held_;
};

class ReplaceDecode : public WholeTokens {
 public:
  ReplaceDecode(std::shared_ptr<const Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

 private:
  void token(std::string_view token) override {
    std::string text(token);
    bool at_start = false;
    pattern_->replace(text, content_, at_start);
    emit(text, true);
  }
  std::shared_ptr<const Pattern> pattern_;
  std::string content_;
};

class MetaspaceDecode : public WholeTokens {
 public:
  MetaspaceDecode(std::string replacement, bool prefixed)
      : replacement_(std::move(replacement)), drop_(prefixed) {}

 private:
  void token(std::string_view token) override {
    std::string text;
    for (size_t at = 0; at < token.size();) {
      const std::string_view character = token.substr(at, utf8_length(token[at]));
      at += character.size();
      if (character != replacement_) {
        text += character;
      } else if (!drop_) {
        text += ' ';
      }
    }
    drop_ = false;
    emit(text, true);
  }
  std::string replacement_;
  bool drop_;  ///< the first token loses its blanks
};

std::string one_character(const Json& config, const char* key, std::string_view source) {
  std::string text = json_string(config, key, source);
  if (text.empty() || utf8_length(text[0]) != text.size()) {
    throw UsageError("decoder", std::string(source) + ": \"" + key + "\" must be one character");
  }
  return text;
}

size_t small_count(const Json& config, const char* key, std::string_view source) {
  const int64_t count = json_int(config, key, source);
  if (count < 0 || count > 1024) {
    throw UsageError("decoder", std::string(source) + ": \"" + key + "\" must be 0 to 1024");
  }
  return static_cast<size_t>(count);
}

template <typename Stage, typename... Arguments>
Decoder::Factory factory(Arguments... arguments) {
  return [=] { return std::make_unique<Stage>(arguments...); };
}

Decoder::Factory make_metaspace(const Json& config, std::string_view source) {
  const std::string replacement = one_character(config, "replacement", source);
  const bool never =
      config.contains("prepend_scheme")
          ? json_string(config, "prepend_scheme", source) == "never"
          : config.contains("add_prefix_space") && !json_bool(config, "add_prefix_space", source);
  return factory<MetaspaceDecode>(replacement, !never);
}

void add_stages(const Json& config, std::string_view source, std::vector<Decoder::Factory>& out) {
  const std::string type = json_string(config, "type", source);
  if (type == "Sequence") {
    const Json& list = json_member(config, "decoders", source);
    if (!list.is_array()) {
      throw UsageError("json_type", std::string(source) + ": \"decoders\" must be an array");
    }
    for (const Json& step : list) add_stages(step, source, out);
  } else if (type == "ByteLevel") {
    out.push_back(factory<ByteLevelDecode>());
  } else if (type == "ByteFallback") {
    out.push_back(factory<ByteFallbackDecode>());
  } else if (type == "Fuse") {
    out.push_back(factory<Fuse>());
  } else if (type == "Metaspace") {
    out.push_back(make_metaspace(config, source));
  } else if (type == "Strip") {
    out.push_back(factory<StripDecode>(one_character(config, "content", source),
                                       small_count(config, "start", source),
                                       small_count(config, "stop", source)));
  } else if (type == "Replace") {
    auto pattern = std::make_shared<const Pattern>(
        Pattern::from_json(json_member(config, "pattern", source), source));
    out.push_back(factory<ReplaceDecode>(pattern, json_string(config, "content", source)));
  } else {
    unsupported_component("decoder", type,
                          "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, Sequence",
                          source);
  }
}

}  // namespace

Decoder Decoder::from_json(const Json& config, std::string_view source) {
  Decoder decoder;
  if (config.is_null()) {
    decoder.stages_.push_back(factory<Join>());
  } else {
    add_stages(config, source, decoder.stages_);
  }
  return decoder;
}

Decoder::Run::Run(const Decoder& decoder) {
  for (const Factory& make : decoder.stages_) stages_.push_back(make());
  stages_.push_back(std::make_unique<Collect>());
  for (size_t i = 0; i + 1 < stages_.size(); ++i) stages_[i]->connect(stages_[i + 1].get());
}

Decoder::Run::~Run() = default;
Decoder::Run::Run(Run&&) noexcept = default;
Decoder::Run& Decoder::Run::operator=(Run&&) noexcept = default;

void Decoder::Run::finish() {
  for (const auto& stage : stages_) stage->finish();
}

std::string Decoder::Run::take() { return static_cast<Collect*>(stages_.back().get())->take(); }

}  // namespace cbench
