#include "fetch/line_decoder.h"

#include <algorithm>

#include <zlib.h>
#include <zstd.h>

#include "util/error.h"

namespace cbench {
namespace {
constexpr int kMaxWindowLog = 27;  // 128 MiB
constexpr size_t kOutBytes = 256u << 10;
}  // namespace

struct LineDecoder::Codec {
  ZSTD_DCtx* zstd = nullptr;
  z_stream gzip{};
  bool gzip_on = false;
  bool open = false;  // inside a frame
  ~Codec() {
    ZSTD_freeDCtx(zstd);
    if (gzip_on) inflateEnd(&gzip);
  }
};

LineDecoder::Format LineDecoder::format_of(std::string_view name) {
  if (name.ends_with(".zst") || name.ends_with(".zstd")) return Format::kZstd;
  return name.ends_with(".gz") ? Format::kGzip : Format::kPlain;
}

LineDecoder::LineDecoder(Format format, std::string source, size_t max_line, OnLine on_line)
    : format_(format),
      source_(std::move(source)),
      max_line_(max_line),
      on_line_(std::move(on_line)),
      codec_(std::make_unique<Codec>()) {
  out_.resize(kOutBytes);
  if (format_ == Format::kZstd) {
    codec_->zstd = ZSTD_createDCtx();
    ZSTD_DCtx_setParameter(codec_->zstd, ZSTD_d_windowLogMax, kMaxWindowLog);
  } else if (format_ == Format::kGzip) {
    codec_->gzip_on = inflateInit2(&codec_->gzip, 15 + 16) == Z_OK;
  }
}

LineDecoder::~LineDecoder() = default;

bool LineDecoder::feed(std::string_view bytes) {
  switch (format_) {
    case Format::kZstd:
      return feed_zstd(bytes);
    case Format::kGzip:
      return feed_gzip(bytes);
    case Format::kPlain:
      break;
  }
  return split(bytes);
}

bool LineDecoder::feed_zstd(std::string_view bytes) {
  if (bytes.empty()) return true;
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  ZSTD_outBuffer out{out_.data(), out_.size(), 0};
  do {
    out.pos = 0;
    const size_t code = ZSTD_decompressStream(codec_->zstd, &out, &in);
    if (ZSTD_isError(code) != 0) {
      throw InvalidError("damaged", source_ + ": damaged zstd stream: " + ZSTD_getErrorName(code));
    }
    codec_->open = code != 0;
    if (!split({out_.data(), out.pos})) return false;
    if (code == 0 && in.pos == in.size) break;        // exactly at the end of a frame
  } while (in.pos < in.size || out.pos == out.size);  // a full output may leave more inside
  return true;
}

bool LineDecoder::feed_gzip(std::string_view bytes) {
  z_stream& stream = codec_->gzip;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  bool full = false;
  while (stream.avail_in > 0 || full) {
    stream.next_out = reinterpret_cast<Bytef*>(out_.data());
    stream.avail_out = static_cast<uInt>(out_.size());
    codec_->open = true;
    const int code = inflate(&stream, Z_NO_FLUSH);
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
      throw InvalidError("damaged", source_ + ": damaged gzip stream");
    }
    full = stream.avail_out == 0;
    if (!split({out_.data(), out_.size() - stream.avail_out})) return false;
    if (code == Z_STREAM_END) {  // members may follow each other
      inflateReset(&stream);
      codec_->open = false;
      full = false;
    } else if (code == Z_BUF_ERROR) {
      break;
    }
  }
  return true;
}

bool LineDecoder::split(std::string_view text) {
  decoded_ += static_cast<int64_t>(text.size());
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    const std::string_view piece = text.substr(0, newline);
    if (!skipping_ && line_.size() + piece.size() > max_line_) {
      skipping_ = true;
      std::string().swap(line_);
    }
    if (!skipping_) line_.append(piece);
    if (newline == text.npos) return true;
    text.remove_prefix(newline + 1);
    const bool go_on = on_line_(line_, skipping_);
    skipping_ = false;
    line_.clear();
    if (!go_on) return false;
  }
  return true;
}

void LineDecoder::end() {
  if (codec_->open) throw InvalidError("truncated", source_ + ": ends inside a compressed frame");
  if (!line_.empty() || skipping_) on_line_(line_, skipping_);
  line_.clear();
  skipping_ = false;
}

}  // namespace cbench
