#include "text/decompress.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <zlib.h>
#include <zstd.h>

#include "util/error.h"
#include "util/file.h"

namespace cbench {
namespace {

constexpr size_t kInputBytes = 256 << 10;
constexpr int kMaxWindowLog = 27;  // 128 MiB: what the zstd tool accepts by default

[[noreturn]] void damaged(std::string_view source, const std::string& what) {
  throw UsageError("compressed", std::string(source) + ": " + what);
}

class PlainStream : public ByteStream {
 public:
  PlainStream(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  size_t read(char* to, size_t size) override { return read_some(fd_, to, size, path_); }

 private:
  Fd fd_;
  std::string path_;
};

/// Refilled input of a decompressor.
class Input {
 public:
  Input(Fd fd, std::string path)
      : fd_(std::move(fd)), path_(std::move(path)), buffer_(kInputBytes) {}
  /// False at the end of the file.
  bool refill() {
    size_ = read_some(fd_, buffer_.data(), buffer_.size(), path_);
    return size_ > 0;
  }
  const char* data() const { return buffer_.data(); }
  size_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  Fd fd_;
  std::string path_;
  std::vector<char> buffer_;
  size_t size_ = 0;
};

class ZstdStream : public ByteStream {
 public:
  ZstdStream(Fd fd, const std::string& path)
      : input_(std::move(fd), path), context_(ZSTD_createDCtx(), ZSTD_freeDCtx) {
    ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kMaxWindowLog);
  }

  size_t read(char* to, size_t size) override {
    ZSTD_outBuffer out{to, size, 0};
    while (out.pos == 0 && size > 0) {
      if (in_.pos == in_.size && !flushing_) {
        const bool more = input_.refill();
        in_ = {input_.data(), input_.size(), 0};
        if (!more) {
          if (inside_frame_) damaged(input_.path(), "zstd data ends inside a frame (truncated?)");
          if (!seen_frame_) damaged(input_.path(), "empty file: no zstd frame");
          return 0;
        }
      }
      const size_t hint = ZSTD_decompressStream(context_.get(), &out, &in_);
      if (ZSTD_isError(hint)) {
        const char* after =
            seen_frame_ && !inside_frame_ ? " (trailing bytes behind a frame?)" : "";
        damaged(input_.path(), std::string("bad zstd data: ") + ZSTD_getErrorName(hint) + after);
      }
      inside_frame_ = hint != 0;
      seen_frame_ = true;
      flushing_ = inside_frame_ && out.pos == out.size;
    }
    return out.pos;
  }

 private:
  Input input_;
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool inside_frame_ = false;
  bool seen_frame_ = false;
  bool flushing_ = false;  ///< the decoder may hold more output than fitted
};

class GzipStream : public ByteStream {
 public:
  GzipStream(Fd fd, const std::string& path) : input_(std::move(fd), path) {
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) {
      throw EnvironmentError("memory", path + ": zlib cannot be set up");
    }
  }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;
  ~GzipStream() override { inflateEnd(&stream_); }

  size_t read(char* to, size_t size) override {
    size = std::min<size_t>(size, 1u << 30);
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = static_cast<uInt>(size);
    while (stream_.avail_out == size && size > 0) {
      if (stream_.avail_in == 0 && !fill()) return 0;
      if (member_done_) next_member();
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result == Z_STREAM_END) {
        member_done_ = true;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        damaged(input_.path(), std::string("bad gzip data: ") +
                                   (stream_.msg != nullptr ? stream_.msg : zError(result)) +
                                   (members_ > 0 ? " (trailing bytes behind a member?)" : ""));
      }
    }
    return size - stream_.avail_out;
  }

 private:
  bool fill() {
    if (!input_.refill()) {
      if (!member_done_) damaged(input_.path(), "gzip data ends early (truncated?)");
      return false;
    }
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input_.data()));
    stream_.avail_in = static_cast<uInt>(input_.size());
    return true;
  }
  void next_member() {
    inflateReset(&stream_);
    member_done_ = false;
    ++members_;
  }

  Input input_;
  z_stream stream_{};
  bool member_done_ = false;
  uint64_t members_ = 0;
};

}  // namespace

std::string zstd_decompress(std::string_view bytes, uint64_t max_bytes, std::string_view source) {
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(), ZSTD_freeDCtx);
  ZSTD_DCtx_setParameter(context.get(), ZSTD_d_windowLogMax, kMaxWindowLog);
  std::string content;
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  std::vector<char> block(ZSTD_DStreamOutSize());
  size_t hint = 1;
  while (true) {
    ZSTD_outBuffer out{block.data(), block.size(), 0};
    hint = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(hint)) {
      damaged(source, std::string("bad zstd data: ") + ZSTD_getErrorName(hint));
    }
    if (content.size() + out.pos > max_bytes) {
      throw UsageError("too_large", std::string(source) + ": decompresses to more than " +
                                        std::to_string(max_bytes) + " bytes");
    }
    content.append(block.data(), out.pos);
    if (in.pos == in.size && out.pos < out.size) break;
  }
  if (hint != 0) damaged(source, "zstd data ends inside a frame (truncated?)");
  return content;
}

std::unique_ptr<ByteStream> ByteStream::open(const std::string& path) {
  Fd fd = open_regular(path);
  if (path.ends_with(".zst")) return std::make_unique<ZstdStream>(std::move(fd), path);
  if (path.ends_with(".gz")) return std::make_unique<GzipStream>(std::move(fd), path);
  return std::make_unique<PlainStream>(std::move(fd), path);
}

}  // namespace cbench
