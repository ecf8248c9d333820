#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <functional>

#include "text/unicode.h"
#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr size_t kMaxProbes = 2048;     // of the merge table; see vocabulary.cpp
constexpr size_t kShortWord = 40;       // symbols; above it a heap beats scanning
constexpr int kNeighbourBits = 22;      // 512 KiB
constexpr uint32_t kGone = UINT32_MAX;  // no such symbol

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t pair_hash(uint64_t pair) {
  pair = (pair ^ pair >> 31) * 0x9E3779B97F4A7C15u;
  return pair ^ pair >> 29;
}

/// ASCII pairs have bits of their own; the rest share the others.
size_t neighbour_bit(uint32_t left, uint32_t right) {
  if ((left | right) < 0x80) return left << 7 | right;
  const uint64_t hash = (static_cast<uint64_t>(left) << 32 | right) * 0xD6E8FEB86659FD93u;
  return std::max<size_t>(hash >> (64 - kNeighbourBits), 1 << 14);
}

[[noreturn]] void bad_merge(std::string_view source, size_t index, std::string_view token) {
  throw UsageError("merges", std::string(source) + ": merge " + std::to_string(index + 1) +
                                 " needs token \"" + printable(token) +
                                 "\", which is not in the vocabulary");
}

}  // namespace

Bpe::Bpe(const Vocabulary& vocabulary, const TokenizerJson& file, BpeOptions options,
         std::string_view source)
    : vocabulary_(vocabulary),
      options_(std::move(options)),
      slots_(std::bit_ceil(2 * file.merges.size() + 2)),
      neighbours_((size_t{1} << kNeighbourBits) / 64),
      bytes_(256, -1),
      ascii_(128, -1),
      separable_(options_.prefix.empty() && options_.suffix.empty()) {
  std::string merged;
  for (size_t rank = 0; rank < file.merges.size(); ++rank) {
    const auto& merge = file.merges[rank];
    const std::string_view left = file.text(merge.offset, merge.left);
    const std::string_view right = file.text(merge.offset + merge.left, merge.right);
    const auto left_id = vocabulary.find(left);
    const auto right_id = vocabulary.find(right);
    if (!left_id) bad_merge(source, rank, left);
    if (!right_id || right.size() < options_.prefix.size()) bad_merge(source, rank, right);
    merged = left;
    merged += right.substr(options_.prefix.size());
    const auto id = vocabulary.find(merged);
    if (!id || left.empty() || right.empty()) bad_merge(source, rank, merged);
    add_merge(*left_id, *right_id, static_cast<uint32_t>(rank), *id, source);
    const std::string_view last = left.substr(left.size() - last_char_length(left));
    mark_neighbours(first_code_point(last), first_code_point(right));
  }
  for (int byte = 0; byte < 256; ++byte) {
    std::array<char, 8> name;
    std::snprintf(name.data(), name.size(), "<0x%02X>", static_cast<unsigned>(byte));
    bytes_[byte] = vocabulary.find(name.data()).value_or(-1);
    const char character = static_cast<char>(byte);
    if (byte < 128) ascii_[byte] = vocabulary.find({&character, 1}).value_or(-1);
  }
}

void Bpe::add_merge(int32_t left, int32_t right, uint32_t rank, int32_t id,
                    std::string_view source) {
  const uint64_t pair = pair_key(left, right);
  const size_t mask = slots_.size() - 1;
  size_t at = pair_hash(pair) & mask;
  for (size_t probes = 0; slots_[at].rank != kNever && slots_[at].pair != pair; ++probes) {
    if (probes == kMaxProbes) {
      throw UsageError("merges", std::string(source) + ": merges that collide on purpose: refused");
    }
    at = (at + 1) & mask;
  }
  slots_[at] = {pair, rank, id};  // of a repeated pair the last one counts
}

const Bpe::Slot& Bpe::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  const size_t mask = slots_.size() - 1;
  size_t at = pair_hash(pair) & mask;
  while (slots_[at].rank != kNever && slots_[at].pair != pair) at = (at + 1) & mask;
  return slots_[at];
}

void Bpe::mark_neighbours(uint32_t left, uint32_t right) {
  const size_t bit = neighbour_bit(left, right);
  neighbours_[bit / 64] |= uint64_t{1} << bit % 64;
}

bool Bpe::may_be_neighbours(uint32_t left, uint32_t right) const {
  const size_t bit = neighbour_bit(left, right);
  return neighbours_[bit / 64] >> bit % 64 & 1;
}

void Bpe::encode(std::string_view piece, bool byte_level, Scratch& scratch,
                 std::vector<int32_t>& out) const {
  if (piece.size() > WordCache::kMaxWord) {
    encode_uncached(piece, byte_level, scratch, out);
    return;
  }
  const WordCache::Key key(piece);
  size_t count = 0;
  if (const int32_t* ids = scratch.cache.find(key, count)) {
    out.insert(out.end(), ids, ids + count);
    return;
  }
  const size_t before = out.size();
  encode_uncached(piece, byte_level, scratch, out);
  scratch.cache.store(key, std::span(out).subspan(before));
}

void Bpe::encode_uncached(std::string_view piece, bool byte_level, Scratch& scratch,
                          std::vector<int32_t>& out) const {
  if (byte_level) {
    scratch.mapped.clear();
    append_byte_level(scratch.mapped, piece);
    piece = scratch.mapped;
  }
  if (options_.ignore_merges) {
    if (const auto whole = vocabulary_.find(piece)) {
      out.push_back(*whole);
      return;
    }
  }
  // Words inside a piece may share the cache with pieces only if both are read the same way.
  if (!separable_ || byte_level || options_.ignore_merges) {
    encode_word(piece, scratch, out);
  } else {
    encode_segments(piece, scratch, out);
  }
}

void Bpe::encode_segments(std::string_view text, Scratch& scratch,
                          std::vector<int32_t>& out) const {
  size_t begin = 0;
  size_t previous = 0;
  uint32_t left = first_code_point(text);
  for (size_t at = utf8_length(text[0]); at < text.size();) {
    const size_t length = utf8_length(text[at]);
    const uint32_t right = first_code_point(text.substr(at));
    // Next to a character without a token of its own (bytes, unk) nothing is cut.
    if (!may_be_neighbours(left, right) && symbol(text.substr(at, length), true, true) &&
        symbol(text.substr(previous, at - previous), true, true)) {
      encode_segment(text.substr(begin, at - begin), scratch, out);
      begin = at;
    }
    left = right;
    previous = at;
    at += length;
  }
  encode_segment(text.substr(begin), scratch, out);
}

void Bpe::encode_segment(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  if (word.size() > WordCache::kMaxWord) {
    encode_word(word, scratch, out);
    return;
  }
  const WordCache::Key key(word);
  size_t count = 0;
  if (const int32_t* ids = scratch.cache.find(key, count)) {
    out.insert(out.end(), ids, ids + count);
    return;
  }
  const size_t before = out.size();
  encode_word(word, scratch, out);
  scratch.cache.store(key, std::span(out).subspan(before));
}

void Bpe::encode_word(std::string_view text, Scratch& scratch, std::vector<int32_t>& out) const {
  scratch.ids.clear();
  symbols(text, scratch.ids);
  if (scratch.ids.size() > kShortWord) {
    merge_long(scratch);
  } else if (scratch.ids.size() > 1) {
    merge_short(scratch);
  }
  out.insert(out.end(), scratch.ids.begin(), scratch.ids.end());
}

std::optional<int32_t> Bpe::symbol(std::string_view character, bool first, bool last) const {
  if (separable_) {
    if (character.size() > 1) return vocabulary_.find(character);
    const int32_t id = ascii_[static_cast<uint8_t>(character[0])];
    return id < 0 ? std::nullopt : std::optional<int32_t>(id);
  }
  std::string name = first ? std::string() : options_.prefix;
  name += character;
  if (last) name += options_.suffix;
  return vocabulary_.find(name);
}

bool Bpe::fall_back(std::string_view character, std::vector<int32_t>& ids) const {
  if (!options_.byte_fallback) return false;
  const auto id_of = [&](char byte) { return bytes_[static_cast<uint8_t>(byte)]; };
  if (std::any_of(character.begin(), character.end(), [&](char c) { return id_of(c) < 0; })) {
    return false;
  }
  for (const char byte : character) ids.push_back(id_of(byte));
  return true;
}

/// The pending unk is written only when the next known character or the end comes, also across
/// fallback bytes: that is the reference implementation's order.
void Bpe::symbols(std::string_view text, std::vector<int32_t>& ids) const {
  bool pending = false;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at + utf8_length(text[at]);
    const bool first = at == 0;
    const bool last = end == text.size();
    const std::string_view character = text.substr(at, end - at);
    at = end;
    if (const auto id = symbol(character, first, last)) {
      if (pending) ids.push_back(*options_.unk);
      pending = false;
      ids.push_back(*id);
      continue;
    }
    std::string name;
    if (!separable_) {
      name =
          (first ? "" : options_.prefix) + std::string(character) + (last ? options_.suffix : "");
    }
    if (fall_back(separable_ ? character : name, ids) || !options_.unk) continue;
    if (pending && !options_.fuse_unk) ids.push_back(*options_.unk);
    pending = true;
  }
  if (pending) ids.push_back(*options_.unk);
}

/// Repeatedly merges the pair of lowest rank, leftmost on ties, by scanning.
void Bpe::merge_short(Scratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids;
  std::vector<uint32_t>& ranks = scratch.ranks;
  ranks.resize(ids.size());
  for (size_t i = 0; i + 1 < ids.size(); ++i) ranks[i] = find(ids[i], ids[i + 1]).rank;
  size_t pairs = ids.size() - 1;
  while (pairs > 0) {
    const auto best = std::min_element(ranks.begin(), ranks.begin() + static_cast<long>(pairs));
    if (*best == kNever) break;
    const auto at = static_cast<size_t>(best - ranks.begin());
    ids[at] = find(ids[at], ids[at + 1]).id;
    ids.erase(ids.begin() + static_cast<long>(at) + 1);
    ranks.erase(ranks.begin() + static_cast<long>(at));
    --pairs;
    if (at < pairs) ranks[at] = find(ids[at], ids[at + 1]).rank;
    if (at > 0) ranks[at - 1] = find(ids[at - 1], ids[at]).rank;
  }
}

/// The same with a heap of (rank, position) over a linked list; entries whose pair has changed
/// since they were pushed are skipped.
void Bpe::merge_long(Scratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids;
  const size_t count = ids.size();
  if (count >= kGone) throw UsageError("too_large", "text too long to encode");
  std::vector<uint32_t>& ranks = scratch.ranks;
  std::vector<uint32_t>& previous = scratch.previous;
  std::vector<uint32_t>& next = scratch.next;
  std::vector<uint64_t>& heap = scratch.heap;
  ranks.assign(count, kNever);
  previous.resize(count);
  next.resize(count);
  heap.clear();
  const auto rank_pair = [&](uint32_t at) {
    ranks[at] = next[at] == kGone ? kNever : find(ids[at], ids[next[at]]).rank;
    return ranks[at] != kNever;
  };
  const auto entry = [&](uint32_t at) { return static_cast<uint64_t>(ranks[at]) << 32 | at; };
  for (uint32_t at = 0; at < count; ++at) {
    previous[at] = at == 0 ? kGone : at - 1;
    next[at] = at + 1 == count ? kGone : at + 1;
  }
  for (uint32_t at = 0; at < count; ++at) {
    if (rank_pair(at)) heap.push_back(entry(at));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](uint32_t at) {
    if (at == kGone || !rank_pair(at)) return;
    heap.push_back(entry(at));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto at = static_cast<uint32_t>(heap.back());
    const auto rank = static_cast<uint32_t>(heap.back() >> 32);
    heap.pop_back();
    if (ranks[at] != rank) continue;
    const uint32_t right = next[at];
    ids[at] = find(ids[at], ids[right]).id;
    ranks[right] = kNever;
    next[at] = next[right];
    if (next[at] != kGone) previous[next[at]] = at;
    push(previous[at]);
    push(at);
  }
  size_t kept = 0;
  for (uint32_t at = 0; at != kGone; at = next[at]) ids[kept++] = ids[at];
  ids.resize(kept);
}

}  // namespace cbench
