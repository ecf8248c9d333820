#include "text/tokenizer.h"

#include <algorithm>
#include <mutex>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/decompress.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_load.h"
#include "util/error.h"
#include "util/file.h"
#include "util/text.h"

namespace cbench {

struct Tokenizer::Impl : TokenizerParts {
  /// Buffers and word cache of one running encode().
  struct Scratch {
    Bpe::Scratch bpe;
    Pieces pieces;
  };

  explicit Impl(TokenizerParts parts) : TokenizerParts(std::move(parts)) {}

  std::unique_ptr<Scratch> borrow() {
    const std::lock_guard lock(mutex);
    if (idle.empty()) return std::make_unique<Scratch>();
    auto scratch = std::move(idle.back());
    idle.pop_back();
    return scratch;
  }
  void give_back(std::unique_ptr<Scratch> scratch) {
    const std::lock_guard lock(mutex);
    if (idle.size() < kMaxIdle) idle.push_back(std::move(scratch));
  }

  void encode_raw(std::string_view stretch, bool at_start, Scratch& scratch,
                  std::vector<int32_t>& ids) const;
  void encode_normalized(std::string_view stretch, bool at_start, Scratch& scratch,
                         std::vector<int32_t>& ids) const;
  std::string_view decoded_token(int32_t id) const;
  std::optional<std::string_view> name_of(int32_t id) const {
    if (vocabulary->has(id)) return vocabulary->token(id);
    if (added->has(id)) return added->token(id);
    return std::nullopt;
  }
  size_t size() const { return std::max(vocabulary->size(), added->size()); }

  static constexpr size_t kMaxIdle = 64;
  std::mutex mutex;
  std::vector<std::unique_ptr<Scratch>> idle;
};

/// A stretch between two raw added tokens: normalized by itself, then cut at the added tokens that
/// match after normalization.
void Tokenizer::Impl::encode_raw(std::string_view stretch, bool at_start, Scratch& scratch,
                                 std::vector<int32_t>& ids) const {
  std::string normalized;
  if (normalizer != nullptr) {
    normalized = stretch;
    normalizer->apply(normalized, at_start);
    stretch = normalized;
  }
  normalized_tokens.split(stretch, [&](std::string_view rest, const AddedToken* token) {
    if (token != nullptr) {
      ids.push_back(token->id);
    } else {
      encode_normalized(rest, at_start && rest.data() == stretch.data(), scratch, ids);
    }
  });
}

void Tokenizer::Impl::encode_normalized(std::string_view stretch, bool at_start, Scratch& scratch,
                                        std::vector<int32_t>& ids) const {
  if (stretch.size() > INT32_MAX) throw UsageError("too_large", "text too long to encode");
  Pieces& pieces = scratch.pieces;
  pieces.text = stretch;
  pieces.pieces.assign(1, {0, static_cast<uint32_t>(stretch.size()), at_start});
  for (const auto& step : pre_tokenizers.steps) step->apply(pieces);
  for (const Pieces::Piece& piece : pieces.pieces) {
    if (piece.begin == piece.end) continue;
    model->encode(pieces.view(piece), pre_tokenizers.byte_level, scratch.bpe, ids);
  }
}

std::string_view Tokenizer::Impl::decoded_token(int32_t id) const {
  const auto name = name_of(id);
  if (!name) {
    throw UsageError("token_id", "token id " + std::to_string(id) +
                                     " is not in the vocabulary (ids go from 0 to " +
                                     std::to_string(size() - 1) + ")");
  }
  if (decoded_as.empty()) return *name;
  const auto found = decoded_as.find(id);
  return found == decoded_as.end() ? *name : std::string_view(found->second);
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::string& path) {
  if (path.ends_with(".zst")) {
    const std::string bytes = zstd_decompress(read_file(path, TokenizerLimits{}.max_bytes),
                                              TokenizerLimits{}.max_bytes, path);
    return load_bytes(bytes, path);
  }
  const MappedFile file(path);
  return load_bytes(file.bytes(), path);
}

Tokenizer Tokenizer::load_bytes(std::string_view json, std::string_view source) {
  return Tokenizer(std::make_unique<Impl>(load_tokenizer_parts(json, source)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  if (text.size() > kMaxText) {
    throw UsageError("too_large", "text of " + std::to_string(text.size()) + " bytes; at most " +
                                      std::to_string(kMaxText) + " are encoded at once");
  }
  if (!is_utf8(text)) {
    throw UsageError("utf8", "text to encode is not well-formed UTF-8; repair it first");
  }
  std::vector<int32_t> ids;
  if (add_special) ids = impl_->post_processor.before;
  auto scratch = impl_->borrow();
  impl_->raw_tokens.split(text, [&](std::string_view stretch, const AddedToken* token) {
    if (token != nullptr) {
      ids.push_back(token->id);
    } else {
      impl_->encode_raw(stretch, stretch.data() == text.data(), *scratch, ids);
    }
  });
  impl_->give_back(std::move(scratch));
  if (add_special) {
    const auto& after = impl_->post_processor.after;
    ids.insert(ids.end(), after.begin(), after.end());
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  Decoder::Run run(impl_->decoder);
  for (const int32_t id : ids) {
    const std::string_view token = impl_->decoded_token(id);
    if (!skip_special || !is_special(id)) run.push(token);
  }
  run.finish();
  return run.take();
}

std::optional<int32_t> Tokenizer::token_id(std::string_view token) const {
  const auto id = impl_->vocabulary->find(token);
  return id ? id : impl_->added->find(token);
}

std::optional<std::string_view> Tokenizer::token(int32_t id) const { return impl_->name_of(id); }

bool Tokenizer::is_special(int32_t id) const { return impl_->special.contains(id); }

size_t Tokenizer::vocab_size() const { return impl_->size(); }

struct StreamDecoder::State {
  const Tokenizer& tokenizer;
  bool skip_special;
  Decoder::Run run;
};

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : state_(std::make_unique<State>(
          State{tokenizer, skip_special, Decoder::Run(tokenizer.impl_->decoder)})) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::push(int32_t id) {
  const std::string_view token = state_->tokenizer.impl_->decoded_token(id);
  if (!state_->skip_special || !state_->tokenizer.is_special(id)) state_->run.push(token);
  return state_->run.take();
}

std::string StreamDecoder::finish() {
  state_->run.finish();
  return state_->run.take();
}

}  // namespace cbench
