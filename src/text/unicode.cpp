#include "text/unicode.h"

#include <utf8proc.h>

namespace cbench {
namespace {

utf8proc_category_t category(uint32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

std::array<uint16_t, 256> make_alphabet() {
  std::array<uint16_t, 256> alphabet{};
  uint16_t next = 256;
  for (uint16_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    alphabet[byte] = printable ? byte : next++;
  }
  return alphabet;
}

/// Code point of the alphabet -> byte, -1 elsewhere. All of it lies below U+0144.
std::array<int16_t, 0x144> make_inverse() {
  std::array<int16_t, 0x144> inverse;
  inverse.fill(-1);
  for (size_t byte = 0; byte < 256; ++byte) {
    inverse[byte_level_alphabet()[byte]] = static_cast<int16_t>(byte);
  }
  return inverse;
}

}  // namespace

uint32_t first_code_point(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return lead;
  if (lead < 0xE0) return (lead & 0x1F) << 6 | (byte(1) & 0x3F);
  if (lead < 0xF0) return (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  return (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
}

size_t last_char_length(std::string_view text) {
  size_t length = 1;
  while (length < text.size() &&
         (static_cast<uint8_t>(text[text.size() - length]) & 0xC0) == 0x80) {
    ++length;
  }
  return length;
}

void append_utf8(std::string& out, uint32_t code_point) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

bool is_space(uint32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || c == 0x20;
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_numeric(uint32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(uint32_t c) {
  if (c < 0x80)
    return c > 0x20 && c < 0x7F && !((c | 0x20) >= 'a' && (c | 0x20) <= 'z') && !is_numeric(c);
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(uint32_t c) {
  if (c < 0x300) return false;
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_MN && kind <= UTF8PROC_CATEGORY_ME && !newer_than_reference(c);
}

void append_lower(std::string& out, uint32_t code_point) {
  if (code_point == 0x130) {
    out += "i\xCC\x87";
    return;
  }
  append_utf8(out,
              static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point))));
}

const std::array<uint16_t, 256>& byte_level_alphabet() {
  static const std::array<uint16_t, 256> alphabet = make_alphabet();
  return alphabet;
}

void append_byte_level(std::string& out, std::string_view bytes) {
  const auto& alphabet = byte_level_alphabet();
  for (const char byte : bytes) append_utf8(out, alphabet[static_cast<uint8_t>(byte)]);
}

std::string bytes_of_byte_level(std::string_view token) {
  static const std::array<int16_t, 0x144> inverse = make_inverse();
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t i = 0; i < token.size(); i += utf8_length(token[i])) {
    const uint32_t code_point = first_code_point(token.substr(i));
    if (code_point >= inverse.size() || inverse[code_point] < 0) return std::string(token);
    bytes += static_cast<char>(inverse[code_point]);
  }
  return bytes;
}

}  // namespace cbench
