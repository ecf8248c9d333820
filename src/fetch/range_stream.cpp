#include "fetch/range_stream.h"

#include "util/text.h"

namespace cbench {
namespace {

constexpr size_t kBufferBytes = 256u << 10;
using Cause = StartAgain::Cause;

bool is_encoded(const HttpResponse& head) {
  const std::string* encoding = head.headers.find("Content-Encoding");
  return encoding != nullptr && *encoding != "identity" && !encoding->empty();
}

bool parse_number(std::string_view text, int64_t& value) {
  if (text.empty() || text.size() > 18) return false;
  value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + (c - '0');
  }
  return true;
}

StartAgain wrong_size(const Download& file, int64_t got) {
  return {Cause::kWrongSize,
          file.name + ": the server sends " + (got < 0 ? "more" : std::to_string(got)) +
              " bytes, expected " + std::to_string(file.size),
          "wrong_size"};
}

}  // namespace

bool parse_content_range(std::string_view text, ByteRange& range, int64_t& total) {
  if (!text.starts_with("bytes ")) return false;
  text.remove_prefix(6);
  const size_t dash = text.find('-');
  const size_t slash = text.find('/');
  if (dash == text.npos || slash == text.npos || dash > slash) return false;
  int64_t last = 0;
  if (!parse_number(text.substr(0, dash), range.begin) ||
      !parse_number(text.substr(dash + 1, slash - dash - 1), last) || last < range.begin) {
    return false;
  }
  range.end = last + 1;
  total = -1;
  const std::string_view size = text.substr(slash + 1);
  return size == "*" || (parse_number(size, total) && range.end <= total);
}

void RangeStream::begin(const HttpResponse& head, std::string_view first) {
  begun_ = true;
  const bool encoded = is_encoded(head);
  if (head.status == 206) {
    begin_partial(head, encoded);
  } else if (head.status == 200) {
    begin_whole(head, encoded, first);
  } else {
    throw EnvironmentError(
        "http", job_.file_.name + ": unexpected HTTP status " + std::to_string(head.status));
  }
  if (job_.part_->total() == 0 && job_.file_.sha256.empty() && job_.file_.git_sha1.empty()) {
    const std::string etag = head.headers.get("ETag");
    const bool strong = etag.size() > 2 && etag.front() == '"';
    job_.part_->set_validator(strong ? etag : "");
  }
}

void RangeStream::begin_partial(const HttpResponse& head, bool encoded) {
  ByteRange got;
  int64_t total = -1;
  const bool parsed = parse_content_range(head.headers.get("Content-Range"), got, total);
  const std::lock_guard lock(job_.mutex_);
  if (!ranged_ || encoded || !parsed || got.begin != range_.begin || got.end > range_.end) {
    job_.ranges_ = false;
    throw StartAgain{Cause::kRangeIgnored,
                     job_.file_.name + ": the server answers a range with another one (" +
                         printable(head.headers.get("Content-Range")) + ")",
                     "bad_range"};
  }
  if (total >= 0 && job_.size_ >= 0 && total != job_.size_) throw wrong_size(job_.file_, total);
  if (total >= 0 && job_.size_ < 0) {
    job_.size_ = total;
    range_.end = total;
  }
  job_.parallel_ = job_.size_ >= 0;
}

void RangeStream::begin_whole(const HttpResponse& head, bool encoded, std::string_view first) {
  const auto length = encoded ? std::nullopt : head.headers.number("Content-Length");
  const std::lock_guard lock(job_.mutex_);
  if (length && job_.file_.size >= 0 && *length != job_.file_.size) {
    if (first.starts_with(kLfsPointerStart)) {
      throw EnvironmentError("lfs_pointer",
                             job_.file_.name +
                                 ": the server sent a Git LFS pointer, not the file; "
                                 "use the repository's resolve/ address");
    }
    throw wrong_size(job_.file_, *length);
  }
  if (ranged_) {  // ignored: this is the file from its start
    job_.ranges_ = false;
    if (job_.active_ > 1) {
      throw StartAgain{Cause::kRangeIgnored,
                       job_.file_.name + ": the server stopped serving ranges", "bad_range"};
    }
    job_.restart_part();
    job_.fill_todo();
    job_.todo_.clear();
  }
  if (job_.file_.size < 0) job_.size_ = length.value_or(-1);
  range_ = {0, job_.size_ >= 0 ? job_.size_ : INT64_MAX};
}

void RangeStream::take(const HttpResponse& head, std::string_view bytes) {
  if (!begun_) begin(head, bytes);
  const int64_t room = range_.end - range_.begin - static_cast<int64_t>(buffer_.size());
  if (static_cast<int64_t>(bytes.size()) > room) throw wrong_size(job_.file_, -1);
  if (range_.end == INT64_MAX && INT64_MAX - room > job_.file_.max_size) {
    throw EnvironmentError("too_large", job_.file_.name + ": larger than the allowed " +
                                            std::to_string(job_.file_.max_size) + " bytes");
  }
  if (buffer_.empty() && bytes.size() >= kBufferBytes) buffer_.reserve(kBufferBytes);
  buffer_.append(bytes);
  if (buffer_.size() >= kBufferBytes) flush();
}

void RangeStream::flush() {
  if (buffer_.empty()) return;
  job_.part_->write(range_.begin, buffer_);
  const auto size = static_cast<int64_t>(buffer_.size());
  range_.begin += size;
  job_.bytes_in_place_ += size;
  buffer_.clear();
  {
    const std::lock_guard lock(job_.mutex_);
    job_.result_.received += size;
    if (job_.hash_) job_.hash_->advance(job_.part_->prefix());
  }
  job_.part_->save();
}

void RangeStream::end(const HttpResponse& head) {
  if (!begun_) begin(head, {});
  flush();
  if (range_.end == INT64_MAX) {  // the size was unknown until now
    range_.end = range_.begin;
    const std::lock_guard lock(job_.mutex_);
    job_.size_ = range_.end;
  }
  if (range_.begin < range_.end) {
    throw TransferError("network", job_.file_.name + ": the answer ended too early", true);
  }
}

}  // namespace cbench
