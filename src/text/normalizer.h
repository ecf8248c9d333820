// Normalizers: rewrite text before it is split (the "normalizer" member of tokenizer.json).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "util/json.h"

namespace cbench {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Rewrites well-formed UTF-8 in place; the result is well-formed. `at_start` (the text begins
  /// where the whole input begins) turns false when the first character goes away.
  virtual void apply(std::string& text, bool& at_start) const = 0;
};

/// NFC, NFD, NFKC, NFKD, Lowercase, Replace, Prepend, Strip, StripAccents, Sequence; null gives
/// nullptr. Throws UsageError "normalizer" for another type, "json_*" for wrong parameters.
std::unique_ptr<Normalizer> make_normalizer(const Json& config, std::string_view source);

/// Raised for a component this program does not implement: names it and what is supported.
[[noreturn]] void unsupported_component(std::string_view kind, std::string_view type,
                                        std::string_view supported, std::string_view source);

}  // namespace cbench
