// Overlap of texts by runs of words: two texts that share 13 words in a row share a source.
//
// Words are runs of letters and digits, ASCII case folded; a character of the scripts that are
// written without blanks (U+3000 to U+DFFF) is a word of its own. The length 13 is the custom since
// GPT-3 (Brown et al. 2020, appendix C).
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace cbench {

inline constexpr size_t kNgramWords = 13;

/// Hash of every word in order, at most `limit` words.
std::vector<uint64_t> word_hashes(std::string_view text, size_t limit = SIZE_MAX);

/// Hash of every run of `n` words; one of all words when there are fewer, none when there is no
/// word.
std::vector<uint64_t> ngram_hashes(const std::vector<uint64_t>& words, size_t n = kNgramWords);

/// Texts to look for in a large corpus that is read once.
class NgramFinder {
 public:
  void add(std::string_view text, size_t limit = SIZE_MAX);  ///< a text to look for
  void scan(std::string_view text);                          ///< part of the corpus
  /// Whether a run of 13 words of `text` (the whole of a shorter one) stood in the corpus.
  bool found(std::string_view text, size_t limit = SIZE_MAX) const;

 private:
  struct Length {
    size_t words;
    std::unordered_set<uint64_t> wanted, seen;
  };
  Length& length(size_t words);
  std::vector<Length> lengths_;  ///< by number of words in a run: 13, or fewer for short texts
};

}  // namespace cbench
