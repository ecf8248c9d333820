#include "text/jsonl.h"

#include <algorithm>

#include "text/decompress.h"
#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr size_t kBlock = 256 << 10;

}  // namespace

JsonlReader::JsonlReader(const std::string& path, uint64_t max_line)
    : path_(path), max_line_(max_line), stream_(ByteStream::open(path)) {}

JsonlReader::~JsonlReader() = default;
JsonlReader::JsonlReader(JsonlReader&&) noexcept = default;
JsonlReader& JsonlReader::operator=(JsonlReader&&) noexcept = default;

bool JsonlReader::refill() {
  if (at_end_) return false;
  buffer_.erase(0, consumed_);
  consumed_ = 0;
  const size_t before = buffer_.size();
  buffer_.resize(before + kBlock);
  const size_t got = stream_->read(buffer_.data() + before, kBlock);
  buffer_.resize(before + got);
  at_end_ = got == 0;
  return got > 0;
}

bool JsonlReader::read_line() {
  size_t searched = 0;  // bytes behind consumed_ known to hold no line end
  while (true) {
    const size_t end = buffer_.find('\n', consumed_ + searched);
    const size_t length = (end == std::string::npos ? buffer_.size() : end) - consumed_;
    if (length > max_line_) {
      ++line_number_;
      throw UsageError("line_too_long",
                       where() + ": line longer than " + std::to_string(max_line_) + " bytes");
    }
    if (end != std::string::npos || (at_end_ && length > 0)) {
      line_ = std::string_view(buffer_).substr(consumed_, length);
      consumed_ += length + (end == std::string::npos ? 0 : 1);
      ++line_number_;
      return true;
    }
    searched = length;
    if (!refill() && searched == 0) return false;
  }
}

bool JsonlReader::next(std::string_view& line) {
  while (read_line()) {
    if (line_.ends_with('\r')) line_.remove_suffix(1);
    if (line_.find_first_not_of(" \t") == std::string_view::npos) continue;
    if (!is_utf8(line_)) throw UsageError("utf8", where() + ": not well-formed UTF-8");
    line = line_;
    return true;
  }
  return false;
}

}  // namespace cbench
