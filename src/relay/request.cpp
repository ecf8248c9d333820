#include "relay/request.h"

#include <algorithm>
#include <charconv>

namespace cbench::relay {
namespace {

constexpr size_t kMaxChunkLine = 256;
constexpr size_t kMaxTrailer = 8u << 10;

bool is_token_char(char c) {
  const bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return alnum || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, is_token_char);
}

/// Visible ASCII, spaces and tabs; upper bytes are not needed by anyone here.
bool is_field_value(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= ' ' && c <= '~') || c == '\t'; });
}

bool is_target(std::string_view text) {
  return text.starts_with('/') &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~' && c != '#'; });
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool parse_whole(std::string_view text, uint64_t& value, int base) {
  if (text.empty() || text.size() > 16) return false;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

HeadResult bad(int status, std::string reason) {
  return {HeadResult::State::kBad, 0, status, std::move(reason)};
}

/// "" or what is wrong with it.
std::string parse_request_line(std::string_view line, RequestHead& head) {
  const size_t first = line.find(' ');
  const size_t second = first == line.npos ? line.npos : line.find(' ', first + 1);
  if (second == line.npos) return "the request line is malformed";
  head.method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, second - first - 1);
  const std::string_view version = line.substr(second + 1);
  if (!is_token(head.method) || head.method.size() > 16) return "the method is malformed";
  if (target.size() > kMaxTarget || !is_target(target)) return "the target is malformed";
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return "the version is not HTTP/1.1";
  head.keep_alive = version == "HTTP/1.1";
  const size_t question = target.find('?');
  head.path = target.substr(0, question);
  if (question != target.npos) head.query = target.substr(question + 1);
  return "";
}

/// What the fields say about the connection and the body.
HeadResult interpret(RequestHead& head) {
  bool length_seen = false;
  for (const auto& [name, value] : head.fields) {
    if (name == "content-length") {
      if (length_seen || !parse_whole(value, head.length, 10)) {
        return bad(400, "Content-Length is malformed or repeated");
      }
      length_seen = true;
    } else if (name == "transfer-encoding") {
      if (head.chunked || lower(value) != "chunked") {
        return bad(501, "the only transfer coding understood is chunked");
      }
      head.chunked = true;
    } else if (name == "connection") {
      if (lower(value).find("close") != std::string::npos) head.keep_alive = false;
    } else if (name == "expect") {
      if (lower(value) != "100-continue") return bad(417, "unknown expectation");
      head.expects_continue = true;
    } else if (name == "upgrade") {
      return bad(400, "no upgrade is possible");
    }
  }
  if (length_seen && head.chunked) return bad(400, "both a length and chunks are announced");
  return {HeadResult::State::kDone, 0, 0, ""};
}

}  // namespace

const std::string* RequestHead::find(std::string_view name) const {
  for (const auto& [key, value] : fields) {
    if (key == name) return &value;
  }
  return nullptr;
}

HeadResult parse_head(std::string_view bytes, RequestHead& head) {
  head = {};
  const size_t end = bytes.substr(0, kMaxHead).find("\r\n\r\n");
  if (end == bytes.npos) {
    if (bytes.size() >= kMaxHead) return bad(431, "the request's head is too large");
    return {};
  }
  std::string_view rest = bytes.substr(0, end + 2);
  const auto next_line = [&] {
    const size_t at = rest.find("\r\n");
    const std::string_view line = rest.substr(0, at);
    rest.remove_prefix(at + 2);
    return line;
  };
  const std::string trouble = parse_request_line(next_line(), head);
  if (!trouble.empty()) return bad(400, trouble);
  while (!rest.empty()) {
    const std::string_view line = next_line();
    const size_t colon = line.find(':');
    const std::string_view name = line.substr(0, colon);
    if (colon == line.npos || !is_token(name)) return bad(400, "a header field is malformed");
    const std::string_view value = trim(line.substr(colon + 1));
    if (!is_field_value(value)) return bad(400, "a header field holds a forbidden character");
    if (head.fields.size() == kMaxFields) return bad(431, "too many header fields");
    head.fields.emplace_back(lower(name), value);
  }
  HeadResult result = interpret(head);
  if (result.state == HeadResult::State::kDone) result.used = end + 4;
  return result;
}

bool ChunkedBody::take_line() {
  if (state_ == State::kSize) {
    const std::string_view line(line_);
    const std::string_view size = trim(line.substr(0, line.find(';')));
    uint64_t value = 0;
    if (!parse_whole(size, value, 16) || !is_field_value(line)) return false;
    too_large_ = value > most_ - total_;
    if (too_large_) return false;
    left_ = value;
    state_ = value == 0 ? State::kTrailer : State::kData;
  } else if (state_ == State::kDataEnd) {
    if (!line_.empty()) return false;
    state_ = State::kSize;
  } else if (line_.empty()) {
    state_ = State::kDone;
  }
  line_.clear();
  return true;
}

size_t ChunkedBody::take(std::string_view bytes, std::string& out) {
  size_t used = 0;
  while (used < bytes.size() && !done() && !bad()) {
    if (state_ == State::kData) {
      const auto n = static_cast<size_t>(std::min<uint64_t>(left_, bytes.size() - used));
      out.append(bytes.substr(used, n));
      used += n;
      left_ -= n;
      total_ += n;
      if (left_ == 0) state_ = State::kDataEnd;
      continue;
    }
    const char c = bytes[used++];
    const bool ends = c == '\n' && line_.ends_with('\r');
    if (ends) line_.pop_back();
    if (!ends) line_ += c;
    if (!ends && state_ == State::kTrailer) ++trailer_;
    const size_t most = state_ == State::kTrailer ? kMaxTrailer : kMaxChunkLine;
    if (line_.size() > most || trailer_ > kMaxTrailer || (ends && !take_line())) {
      state_ = State::kBad;
    }
  }
  return used;
}

}  // namespace cbench::relay
