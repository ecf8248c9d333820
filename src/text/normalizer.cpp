#include "text/normalizer.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include <utf8proc.h>

#include "text/pattern.h"
#include "text/unicode.h"
#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

/// The four Unicode normal forms.
class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(unsigned options, bool composed)
      : options_(options), unchanged_below_(composed ? 0xCC : 0x80) {}

  /// NFC leaves everything below U+0300 (lead byte 0xCC) alone, the other forms ASCII. Only from
  /// one character before the first other one on is there anything to do.
  void apply(std::string& text, bool&) const override {
    const auto first = std::find_if(text.begin(), text.end(), [&](char c) {
      return static_cast<uint8_t>(c) >= unchanged_below_;
    });
    if (first == text.end()) return;
    size_t start = static_cast<size_t>(first - text.begin());
    if (start > 0) start -= last_char_length(std::string_view(text).substr(0, start));
    std::string out = text.substr(0, start);
    for (size_t at = start; at < text.size();) {
      // Characters that the reference does not know stand alone, between stretches.
      if (newer_than_reference(first_code_point(std::string_view(text).substr(at)))) {
        out.append(text, at, utf8_length(text[at]));
        at += utf8_length(text[at]);
        continue;
      }
      size_t end = at;
      while (end < text.size() &&
             !newer_than_reference(first_code_point(std::string_view(text).substr(end)))) {
        end += utf8_length(text[end]);
      }
      append_form(out, std::string_view(text).substr(at, end - at));
      at = end;
    }
    text = std::move(out);
  }

 private:
  void append_form(std::string& out, std::string_view stretch) const {
    utf8proc_uint8_t* result = nullptr;
    const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(stretch.data()),
                                   static_cast<utf8proc_ssize_t>(stretch.size()), &result,
                                   static_cast<utf8proc_option_t>(options_));
    if (size < 0) {
      throw UsageError("normalizer",
                       std::string("Unicode normalization: ") + utf8proc_errmsg(size));
    }
    out.append(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
    std::free(result);  // utf8proc allocates with malloc
  }

  unsigned options_;
  uint8_t unchanged_below_;
};

class Lowercase : public Normalizer {
 public:
  void apply(std::string& text, bool&) const override {
    std::string out;
    out.reserve(text.size());
    for (size_t i = 0; i < text.size(); i += utf8_length(text[i])) {
      append_lower(out, first_code_point(std::string_view(text).substr(i)));
    }
    text = std::move(out);
  }
};

class Replace : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::string& text, bool& at_start) const override {
    pattern_.replace(text, content_, at_start);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(std::string& text, bool&) const override {
    if (!text.empty()) text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text, bool& at_start) const override {
    std::string_view rest = text;
    while (left_ && !rest.empty() && is_space(first_code_point(rest))) {
      rest.remove_prefix(utf8_length(rest[0]));
      at_start = false;
    }
    while (right_ && !rest.empty()) {
      const size_t last = last_char_length(rest);
      if (!is_space(first_code_point(rest.substr(rest.size() - last)))) break;
      rest.remove_suffix(last);
    }
    if (rest.size() != text.size()) text = std::string(rest);
  }

 private:
  bool left_;
  bool right_;
};

class StripAccents : public Normalizer {
 public:
  void apply(std::string& text, bool& at_start) const override {
    std::string out;
    out.reserve(text.size());
    for (size_t i = 0; i < text.size();) {
      const size_t length = utf8_length(text[i]);
      const std::string_view character = std::string_view(text).substr(i, length);
      if (!is_mark(first_code_point(character))) {
        out += character;
      } else if (i == 0) {
        at_start = false;
      }
      i += length;
    }
    text = std::move(out);
  }
};

class Sequence : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  void apply(std::string& text, bool& at_start) const override {
    for (const auto& step : steps_) step->apply(text, at_start);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

std::unique_ptr<Normalizer> make_form(std::string_view type) {
  const bool composed = type.back() == 'C';
  const unsigned options = static_cast<unsigned>(UTF8PROC_STABLE) |
                           (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                           (type.size() == 4 ? static_cast<unsigned>(UTF8PROC_COMPAT) : 0u);
  return std::make_unique<UnicodeForm>(options, type == "NFC");
}

std::unique_ptr<Normalizer> make_sequence(const Json& config, std::string_view source) {
  std::vector<std::unique_ptr<Normalizer>> steps;
  const Json& list = json_member(config, "normalizers", source);
  if (!list.is_array()) {
    throw UsageError("json_type", std::string(source) + ": \"normalizers\" must be an array");
  }
  for (const Json& step : list) {
    if (auto made = make_normalizer(step, source)) steps.push_back(std::move(made));
  }
  return std::make_unique<Sequence>(std::move(steps));
}

}  // namespace

void unsupported_component(std::string_view kind, std::string_view type, std::string_view supported,
                           std::string_view source) {
  throw UsageError(kind, std::string(source) + ": " + std::string(kind) + " type \"" +
                             printable(type) +
                             "\" is not supported (supported: " + std::string(supported) + ")");
}

std::unique_ptr<Normalizer> make_normalizer(const Json& config, std::string_view source) {
  if (config.is_null()) return nullptr;
  const std::string type = json_string(config, "type", source);
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") return make_form(type);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Sequence") return make_sequence(config, source);
  if (type == "Prepend") return std::make_unique<Prepend>(json_string(config, "prepend", source));
  if (type == "Strip") {
    return std::make_unique<Strip>(json_bool(config, "strip_left", source),
                                   json_bool(config, "strip_right", source));
  }
  if (type == "Replace") {
    return std::make_unique<Replace>(
        Pattern::from_json(json_member(config, "pattern", source), source),
        json_string(config, "content", source));
  }
  unsupported_component("normalizer", type,
                        "NFC, NFD, NFKC, NFKD, Lowercase, Replace, Prepend, Strip, StripAccents, "
                        "Sequence",
                        source);
}

}  // namespace cbench
