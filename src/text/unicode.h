// Characters: walking well-formed UTF-8, the few character classes tokenizers need, and GPT-2's
// byte-level alphabet (every byte as one printable character).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace cbench {

/// Bytes of the character that starts with `lead`; the text must be well-formed UTF-8.
inline size_t utf8_length(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

/// The code point at the start of non-empty well-formed `text`.
uint32_t first_code_point(std::string_view text);

/// The length of the last character of non-empty well-formed `text`.
size_t last_char_length(std::string_view text);

void append_utf8(std::string& out, uint32_t code_point);

/// White_Space of the Unicode Standard (what Oniguruma's \s and Rust's is_whitespace match).
bool is_space(uint32_t code_point);
/// General category N (Nd, Nl, No).
bool is_numeric(uint32_t code_point);
/// ASCII punctuation or general category P.
bool is_punctuation(uint32_t code_point);
/// True for characters that the reference implementation's normalization does not know yet
/// (unicode_tables.cpp).
bool newer_than_reference(uint32_t code_point);
/// General category M, as old as the reference's tables.
bool is_mark(uint32_t code_point);
/// Lower case, appended; U+0130 is the one character whose lower case is two characters.
void append_lower(std::string& out, uint32_t code_point);

/// The byte-level alphabet: printable Latin-1 bytes stand for themselves, the others follow from
/// U+0100 (openai/gpt-2, encoder.py, bytes_to_unicode).
const std::array<uint16_t, 256>& byte_level_alphabet();

/// Each byte of `bytes` as its character of the byte-level alphabet.
void append_byte_level(std::string& out, std::string_view bytes);

/// The inverse. A token with any character outside the alphabet stands for its own UTF-8.
std::string bytes_of_byte_level(std::string_view token);

}  // namespace cbench
