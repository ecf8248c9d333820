// Byte-pair encoding: pieces of text to token ids by ranked merges.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_json.h"
#include "text/vocabulary.h"
#include "text/word_cache.h"

namespace cbench {

struct BpeOptions {
  std::optional<int32_t> unk;  ///< id for characters that have none
  bool fuse_unk = false;       ///< a run of unknown characters gives one unk
  bool byte_fallback = false;  ///< unknown characters as <0xXX> tokens, if all of them exist
  bool ignore_merges = false;  ///< a piece that is a token as a whole is that token
  std::string prefix;          ///< continuing_subword_prefix
  std::string suffix;          ///< end_of_word_suffix
};

class Bpe {
 public:
  /// What one encoding thread reuses from piece to piece.
  struct Scratch {
    WordCache cache;
    std::string mapped;
    std::vector<int32_t> ids;
    std::vector<uint32_t> ranks;
    std::vector<uint32_t> previous;
    std::vector<uint32_t> next;
    std::vector<uint64_t> heap;
  };

  /// `vocabulary` must outlive this. Throws UsageError "merges" for a merge whose parts or result
  /// are not in the vocabulary.
  Bpe(const Vocabulary& vocabulary, const TokenizerJson& file, BpeOptions options,
      std::string_view source);

  /// Appends the ids of one piece. `byte_level`: the piece is raw bytes, to be read in the
  /// byte-level alphabet. Near-linear in the piece.
  void encode(std::string_view piece, bool byte_level, Scratch& scratch,
              std::vector<int32_t>& out) const;

 private:
  static constexpr uint32_t kNever = UINT32_MAX;
  struct Slot {
    uint64_t pair = UINT64_MAX;
    uint32_t rank = kNever;
    int32_t id = -1;
  };
  const Slot& find(int32_t left, int32_t right) const;
  void add_merge(int32_t left, int32_t right, uint32_t rank, int32_t id, std::string_view source);

  void encode_uncached(std::string_view piece, bool byte_level, Scratch& scratch,
                       std::vector<int32_t>& out) const;
  void encode_segments(std::string_view text, Scratch& scratch, std::vector<int32_t>& out) const;
  void encode_segment(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;
  void encode_word(std::string_view text, Scratch& scratch, std::vector<int32_t>& out) const;
  void symbols(std::string_view text, std::vector<int32_t>& ids) const;
  std::optional<int32_t> symbol(std::string_view character, bool first, bool last) const;
  bool fall_back(std::string_view character, std::vector<int32_t>& ids) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  /// Characters that some token has side by side (a Bloom-style bitmap). Where a pair is not in
  /// it no merge can cross, so that a long piece falls apart into independent words.
  void mark_neighbours(uint32_t left, uint32_t right);
  bool may_be_neighbours(uint32_t left, uint32_t right) const;

  const Vocabulary& vocabulary_;
  BpeOptions options_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> neighbours_;
  std::vector<int32_t> bytes_;  ///< ids of <0x00> ... <0xFF>, -1 where missing
  std::vector<int32_t> ascii_;  ///< ids of the 128 characters, -1 where missing
  bool separable_ = false;      ///< no prefix or suffix: a piece may be cut between neighbours
};

}  // namespace cbench
