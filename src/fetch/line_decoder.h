// Lines out of a stream of plain, zstd or gzip bytes, pushed in as they arrive: bounded memory
// whatever the stream claims.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace cbench {

class LineDecoder {
 public:
  enum class Format { kPlain, kZstd, kGzip };
  /// By the name's ending: .zst, .gz, else plain.
  static Format format_of(std::string_view name);

  /// Gets each line without its end; `too_long` lines come empty. False stops the stream.
  using OnLine = std::function<bool(std::string_view line, bool too_long)>;

  /// Windows above 128 MiB are refused. `source` names the stream in errors.
  LineDecoder(Format format, std::string source, size_t max_line, OnLine on_line);
  ~LineDecoder();

  /// False once on_line asked to stop. Throws InvalidError "damaged" on a bad stream.
  bool feed(std::string_view bytes);
  /// The input ended: gives a last line without newline. Throws InvalidError "truncated" inside a
  /// frame.
  void end();
  int64_t decoded_bytes() const { return decoded_; }

 private:
  bool feed_zstd(std::string_view bytes);
  bool feed_gzip(std::string_view bytes);
  bool split(std::string_view text);

  struct Codec;
  Format format_;
  std::string source_;
  size_t max_line_;
  OnLine on_line_;
  std::unique_ptr<Codec> codec_;
  std::string out_;
  std::string line_;
  bool skipping_ = false;
  int64_t decoded_ = 0;
};

}  // namespace cbench
