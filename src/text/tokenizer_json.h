// Reads the bytes of a tokenizer.json: the two huge members (vocabulary, merges) straight into
// flat arrays, the rest as a small JSON tree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "util/json.h"

namespace cbench {

/// Bounds on what a file may ask us to hold.
struct TokenizerLimits {
  uint64_t max_bytes = 256u << 20;
  int max_depth = 64;
  size_t max_tokens = 4u << 20;
  size_t max_merges = 16u << 20;
  size_t max_nodes = 2u << 20;         ///< JSON values outside vocabulary and merges
  size_t max_keys = 1024;              ///< members of one object outside the vocabulary
  size_t max_token_bytes = 64u << 10;  ///< one token of the vocabulary
};

struct TokenizerJson {
  struct Token {
    uint32_t offset;
    uint32_t length;
    int32_t id;
  };
  struct Merge {
    uint32_t offset;  ///< of left + right, adjacent in `arena`
    uint32_t left;    ///< bytes of the left part
    uint32_t right;
  };
  Json root;  ///< everything but model.vocab and model.merges
  std::string arena;
  std::vector<Token> vocab;  ///< in file order
  std::vector<Merge> merges;
  bool has_vocab = false;
  bool has_merges = false;

  std::string_view text(uint32_t offset, uint32_t length) const {
    return std::string_view(arena).substr(offset, length);
  }
};

/// Throws UsageError ("json", "too_large", "too_deep", "duplicate_key", "vocab", "merges").
TokenizerJson read_tokenizer_json(std::string_view bytes, std::string_view source,
                                  const TokenizerLimits& limits = {});

}  // namespace cbench
