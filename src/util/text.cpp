#include "util/text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <utility>

namespace cbench {
namespace {

struct Sequence {
  size_t length;  ///< bytes of the character, or of the maximal ill-formed subpart
  enum { kValid, kInvalid, kTruncated } state;
};

/// Classifies the bytes at the start of `text` (Unicode Standard, table 3-7).
Sequence first_sequence(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, Sequence::kValid};
  if (lead < 0xC2 || lead > 0xF4) return {1, Sequence::kInvalid};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {i, Sequence::kTruncated};
    if (byte(i) < low || byte(i) > high) return {i, Sequence::kInvalid};
    low = 0x80;
    high = 0xBF;
  }
  return {length, Sequence::kValid};
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Sequence next = first_sequence(text);
    if (next.state != Sequence::kValid) return false;
    text.remove_prefix(next.length);
  }
  return true;
}

std::string repair_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Sequence next = first_sequence(text);
    if (next.state == Sequence::kValid) {
      out += text.substr(0, next.length);
    } else {
      out += "\xEF\xBF\xBD";
    }
    text.remove_prefix(next.length);
  }
  return out;
}

size_t complete_utf8_prefix(std::string_view text) {
  const size_t longest = std::min<size_t>(3, text.size());
  for (size_t back = 1; back <= longest; ++back) {
    const size_t start = text.size() - back;
    if ((static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) continue;
    const bool open = first_sequence(text.substr(start)).state == Sequence::kTruncated;
    return open ? start : text.size();
  }
  return text.size();
}

std::string printable(std::string_view text, size_t max_bytes) {
  const bool cut = text.size() > max_bytes;
  if (cut) text = text.substr(0, complete_utf8_prefix(text.substr(0, max_bytes)));
  std::string out;
  for (const char c : repair_utf8(text)) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == 0x7F) {
      std::array<char, 8> escape;
      std::snprintf(escape.data(), escape.size(), "\\x%02x", byte);
      out += escape.data();
    } else {
      out += c;
    }
  }
  return cut ? out + "…" : out;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = word.size() / 3 + 2;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace cbench
