// The tokenizer: interprets a Hugging Face tokenizer.json, text to token ids and back.
//
// The pipeline and every rule of it follow huggingface/tokenizers (docs/tokenizer.md): added tokens
// are cut out first, then normalizer, pre-tokenizer, BPE, post-processor; decoders on the way back.
// Nothing is hard-coded for a model family; what the file asks for and this code does not know is
// an error, never a guess.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cbench {

class StreamDecoder;

/// Immutable after loading; all const members may be called from several threads.
class Tokenizer {
 public:
  static constexpr size_t kMaxText = 256u << 20;  ///< bytes of one encode()

  /// Reads a tokenizer.json (also zstd-compressed, if the name ends in .zst). Throws
  /// EnvironmentError if it cannot be read, UsageError if it is malformed, inconsistent or asks for
  /// something unsupported.
  static Tokenizer load(const std::string& path);
  /// The same from memory; `source` names it in errors.
  static Tokenizer load_bytes(std::string_view json, std::string_view source);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Token ids of well-formed UTF-8 (UsageError "utf8" otherwise; util/text.h repairs).
  /// `add_special`: with what the file's post-processor adds, such as a leading <bos>. Special
  /// tokens that appear in the text itself are recognised in any case.
  std::vector<int32_t> encode(std::string_view text, bool add_special = true) const;

  /// The text of `ids`, always well-formed UTF-8. Throws UsageError "token_id" for an id that is
  /// not in the vocabulary.
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;

  std::optional<int32_t> token_id(std::string_view token) const;
  /// The token as the file writes it (byte-level tokens in their alphabet); nothing for a gap.
  std::optional<std::string_view> token(int32_t id) const;
  /// True for the added tokens that decode(skip_special) leaves out.
  bool is_special(int32_t id) const;
  /// Highest id + 1.
  size_t vocab_size() const;

 private:
  friend class StreamDecoder;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Decodes token by token. What push() and finish() return concatenates to exactly decode(), and
/// never holds half a character: bytes of an unfinished one wait for the rest.
class StreamDecoder {
 public:
  /// `tokenizer` must outlive this.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  /// The text that became certain with this token, often empty. Errors as decode().
  std::string push(int32_t id);
  /// What was held back; an incomplete character becomes U+FFFD.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cbench
