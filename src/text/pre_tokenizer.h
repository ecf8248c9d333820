// Pre-tokenizers: cut normalized text into the pieces that the model merges within (the
// "pre_tokenizer" member of tokenizer.json).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "util/json.h"

namespace cbench {

/// A text and how it is cut. Splitters only touch `pieces`; rewriting steps replace `text` too.
struct Pieces {
  struct Piece {
    uint32_t begin;
    uint32_t end;
    bool at_start;  ///< begins where the encoded text begins
  };
  std::string text;
  std::vector<Piece> pieces;
  std::vector<Piece> next;  ///< scratch of the steps

  std::string_view view(const Piece& piece) const {
    return std::string_view(text).substr(piece.begin, piece.end - piece.begin);
  }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Pieces& pieces) const = 0;
};

/// The steps of a file. `byte_level`: the last step maps bytes to the byte-level alphabet, which
/// is left to the model (it then sees raw bytes and maps them only where it has to).
struct PreTokenizers {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  bool byte_level = false;
};

/// Split, ByteLevel, Digits, Whitespace, WhitespaceSplit, Punctuation, Metaspace, Sequence; null
/// gives no steps. Throws UsageError "pre_tokenizer" for another type.
PreTokenizers make_pre_tokenizers(const Json& config, std::string_view source);

}  // namespace cbench
