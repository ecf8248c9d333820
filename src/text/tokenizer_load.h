// Builds and validates the parts of a tokenizer from the bytes of a tokenizer.json.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/vocabulary.h"

namespace cbench {

struct TokenizerParts {
  std::unique_ptr<Vocabulary> vocabulary;  ///< of the model
  std::unique_ptr<Vocabulary> added;       ///< added tokens that the model does not know
  std::unique_ptr<Bpe> model;
  AddedTokenMatcher raw_tokens;         ///< matched on the raw text
  AddedTokenMatcher normalized_tokens;  ///< matched after the normalizer
  std::unordered_set<int32_t> special;
  /// Added tokens that the normalizer changes are decoded from their normalized form.
  std::unordered_map<int32_t, std::string> decoded_as;
  std::unique_ptr<Normalizer> normalizer;  ///< may be null
  PreTokenizers pre_tokenizers;
  PostProcessor post_processor;
  Decoder decoder;
};

/// Throws UsageError; `source` names the input.
TokenizerParts load_tokenizer_parts(std::string_view json, std::string_view source);

}  // namespace cbench
