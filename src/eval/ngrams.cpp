#include "eval/ngrams.h"

#include <algorithm>

namespace cbench {
namespace {

constexpr uint64_t kOffset = 0xcbf29ce484222325u, kPrime = 0x100000001b3u;  // FNV-1a

uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

bool is_word_byte(unsigned char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80;
}

/// First byte of a three-byte character from U+3000 on.
bool stands_alone(unsigned char c) { return c >= 0xe3 && c <= 0xed; }

size_t run_length(size_t words) { return std::min(words, kNgramWords); }

}  // namespace

std::vector<uint64_t> word_hashes(std::string_view text, size_t limit) {
  std::vector<uint64_t> words;
  for (size_t i = 0; i < text.size() && words.size() < limit;) {
    auto c = static_cast<unsigned char>(text[i]);
    if (!is_word_byte(c)) {
      ++i;
      continue;
    }
    uint64_t hash = kOffset;
    const size_t start = i;
    const bool alone = stands_alone(c);
    while (i < text.size() && (alone ? i < start + 3 : is_word_byte(c) && !stands_alone(c))) {
      const bool upper = c >= 'A' && c <= 'Z';
      hash = (hash ^ static_cast<uint64_t>(upper ? c + 32 : c)) * kPrime;
      if (++i < text.size()) c = static_cast<unsigned char>(text[i]);
    }
    words.push_back(mixed(hash));
  }
  return words;
}

std::vector<uint64_t> ngram_hashes(const std::vector<uint64_t>& words, size_t n) {
  std::vector<uint64_t> grams;
  if (words.empty()) return grams;
  n = std::min(n, words.size());
  for (size_t i = 0; i + n <= words.size(); ++i) {
    uint64_t hash = n;
    for (size_t k = 0; k < n; ++k) hash = (hash * kPrime) ^ words[i + k];
    grams.push_back(mixed(hash));
  }
  return grams;
}

NgramFinder::Length& NgramFinder::length(size_t words) {
  for (Length& one : lengths_) {
    if (one.words == words) return one;
  }
  return lengths_.emplace_back(Length{words, {}, {}});
}

void NgramFinder::add(std::string_view text, size_t limit) {
  const std::vector<uint64_t> words = word_hashes(text, limit);
  if (words.empty()) return;
  for (const uint64_t gram : ngram_hashes(words)) {
    length(run_length(words.size())).wanted.insert(gram);
  }
}

void NgramFinder::scan(std::string_view text) {
  const std::vector<uint64_t> words = word_hashes(text);
  for (Length& one : lengths_) {
    if (words.size() < one.words) continue;
    for (const uint64_t gram : ngram_hashes(words, one.words)) {
      if (one.wanted.contains(gram)) one.seen.insert(gram);
    }
  }
}

bool NgramFinder::found(std::string_view text, size_t limit) const {
  const std::vector<uint64_t> words = word_hashes(text, limit);
  for (const Length& one : lengths_) {
    if (one.words != run_length(words.size())) continue;
    for (const uint64_t gram : ngram_hashes(words)) {
      if (one.seen.contains(gram)) return true;
    }
  }
  return false;
}

}  // namespace cbench
