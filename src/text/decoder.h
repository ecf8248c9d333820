// Decoders: token strings back to text, as a chain of streaming stages, so that decoding token by
// token and decoding everything at once are the same code.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "util/json.h"

namespace cbench {

/// One step. Text arrives in fragments of tokens; `ends` marks the last fragment of a token.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual void push(std::string_view fragment, bool ends) = 0;
  /// No more tokens: hands on what is held back.
  virtual void finish() {}
  void connect(DecodeStage* next) { next_ = next; }

 protected:
  void emit(std::string_view fragment, bool ends) { next_->push(fragment, ends); }

 private:
  DecodeStage* next_ = nullptr;
};

/// The immutable recipe of a file.
class Decoder {
 public:
  /// ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, Sequence; null joins the tokens
  /// with blanks. Throws UsageError "decoder" for another type.
  static Decoder from_json(const Json& config, std::string_view source);

  /// A running chain: push tokens, take text, finish.
  class Run {
   public:
    explicit Run(const Decoder& decoder);
    ~Run();
    Run(Run&&) noexcept;
    Run& operator=(Run&&) noexcept;
    void push(std::string_view token) { stages_.front()->push(token, true); }
    void finish();
    /// The text that became certain since the last call; whole characters only.
    std::string take();

   private:
    std::vector<std::unique_ptr<DecodeStage>> stages_;  ///< the last one collects
  };

  using Factory = std::function<std::unique_ptr<DecodeStage>()>;

 private:
  std::vector<Factory> stages_;
};

}  // namespace cbench
