#include "relay/connection.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include <poll.h>
#include <sys/socket.h>

#include "util/clock.h"
#include "util/text.h"

namespace cbench::relay {
namespace {

bool ready(int fd, short events, double deadline) {
  for (;;) {
    const double left = deadline - boot_seconds();
    if (left <= 0) return false;
    pollfd poller{fd, events, 0};
    const int n = ::poll(&poller, 1, static_cast<int>(std::min(left, 60.0) * 1000) + 1);
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

const char* reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 429:
      return "Too Many Requests";
    default:
      return status < 400 ? "Other" : "Error";
  }
}

std::string status_line(int status) {
  return "HTTP/1.1 " + std::to_string(status) + " " + reason_phrase(status) + "\r\n";
}

}  // namespace

void Connection::run() {
  while (serve_one()) {
  }
}

void Connection::turn_away(Fd socket, const RelayOptions& options) {
  const std::string body =
      error_body(options.api, "overloaded_error", "the relay has as many connections as it serves");
  const std::string text = status_line(503) +
                           "content-type: application/json\r\nretry-after: 1\r\n"
                           "connection: close\r\ncontent-length: " +
                           std::to_string(body.size()) + "\r\n\r\n" + body;
  ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

Connection::Got Connection::read_more(double deadline) {
  std::array<char, 65536> bytes;
  for (;;) {
    if (!ready(socket_.get(), POLLIN, deadline)) return Got::kTimeout;
    const ssize_t n = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return Got::kEnd;
    buffer_.append(bytes.data(), static_cast<size_t>(n));
    return Got::kData;
  }
}

bool Connection::read_head(RequestHead& head) {
  const double deadline = boot_seconds() + options_.head_seconds;
  for (;;) {
    const HeadResult result = parse_head(buffer_, head);
    if (result.state == HeadResult::State::kDone) {
      buffer_.erase(0, result.used);
      return true;
    }
    if (result.state == HeadResult::State::kBad) {
      CallRecord record{utc_now(), boot_seconds(), head.method, head.path};
      return refuse({result.status, "malformed", result.reason}, record, false);
    }
    if (read_more(deadline) != Got::kData) return false;
  }
}

/// False when the connection is to end; the refusal has been answered then.
bool Connection::read_body(const RequestHead& head, std::string& body, CallRecord& record) {
  const double deadline = boot_seconds() + options_.body_seconds;
  ChunkedBody chunks(options_.max_body);
  for (;;) {
    if (head.chunked) {
      buffer_.erase(0, chunks.take(buffer_, body));
      if (chunks.done()) return true;
      if (chunks.too_large()) {
        return refuse({413, "too_large", "the request is larger than the relay forwards"}, record,
                      false);
      }
      if (chunks.bad()) return refuse({400, "malformed", "a chunk is malformed"}, record, false);
    } else {
      const auto n =
          static_cast<size_t>(std::min<uint64_t>(head.length - body.size(), buffer_.size()));
      body.append(buffer_, 0, n);
      buffer_.erase(0, n);
      if (body.size() == head.length) return true;
    }
    const Got got = read_more(deadline);
    if (got == Got::kData) continue;
    if (got == Got::kTimeout) {
      return refuse({408, "slow", "the request's body did not come in time"}, record, false);
    }
    record.outcome = "client_left";
    log_.write(record);
    return false;
  }
}

bool Connection::serve_one() {
  RequestHead head;
  answering_ = false;
  if (!read_head(head)) return false;
  keep_alive_ = head.keep_alive;
  CallRecord record{utc_now(), boot_seconds(), head.method, head.path};
  if (const auto refusal = refuse_head(options_.api, head, options_.max_body)) {
    return refuse(*refusal, record, false);
  }
  if (head.expects_continue && !send("HTTP/1.1 100 Continue\r\n\r\n")) return false;
  std::string body;
  if (!read_body(head, body, record)) return false;
  record.request_bytes = body.size();
  if (const auto refusal = refuse_body(body, record.model)) {
    return refuse(*refusal, record, keep_alive_);
  }
  if (!log_.usable()) {
    // What cannot be recorded is not forwarded.
    return answer_error(503, "api_error", "the relay can no longer record calls", false);
  }
  return forward(head, body, record);
}

UpstreamCall Connection::make_call(const RequestHead& head, const std::string& body) const {
  UpstreamCall call;
  call.target = head.path + (head.query.empty() ? "" : "?" + head.query);
  call.body = &body;
  for (const auto& [name, value] : head.fields) {
    if (passes_up(name) && !value.empty()) call.fields.push_back(name + ": " + value);
  }
  return call;
}

bool Connection::forward(const RequestHead& head, const std::string& body, CallRecord& record) {
  const uint64_t id = log_.begin(record);
  UpstreamCall call = make_call(head, body);
  std::unique_ptr<UsageWatch> usage;
  call.on_head = [&](int status, const auto& fields) {
    const bool goes_on = begin_answer(status, fields, record);
    usage = std::make_unique<UsageWatch>(record.stream);
    log_.update(id, record);
    return goes_on;
  };
  call.on_body = [&](std::string_view bytes) { return pass_on(bytes, record, *usage); };
  call.goes_on = [&] { return client_is_there(); };
  const UpstreamEnd end = upstream_.call(call);
  if (usage != nullptr) {
    usage->finish();
    record.usage = usage->usage();
    if (!usage->model().empty()) record.model = usage->model();
    record.detail = usage->error();
  }
  classify(end, record);
  // Recorded first: whoever sees the end of an answer can rely on its record.
  const bool kept = log_.end(id, record);
  return conclude(end, record) && kept;
}

/// Sends status and fields as soon as they are known.
bool Connection::begin_answer(int status,
                              const std::vector<std::pair<std::string, std::string>>& fields,
                              CallRecord& record) {
  record.status = status;
  record.first_byte_seconds = boot_seconds() - record.started;
  std::string text = status_line(status);
  for (const auto& [name, value] : fields) {
    const auto plain = [](const std::string& field) {
      return printable(field, field.size()) == field;
    };
    if (!passes_down(name) || !plain(name) || !plain(value)) continue;
    text += name + ": " + value + "\r\n";
    if (name == "content-type") record.stream = value.starts_with("text/event-stream");
    if (name == "request-id" || name == "x-request-id") record.request_id = value;
    if (name == "retry-after") record.retry_after = value;
  }
  text += keep_alive_ ? "transfer-encoding: chunked\r\n\r\n" : "connection: close\r\n\r\n";
  answering_ = true;
  return send(text);
}

bool Connection::pass_on(std::string_view bytes, CallRecord& record, UsageWatch& usage) {
  record.answer_bytes += bytes.size();
  usage.take(bytes);
  if (!keep_alive_) return send(bytes);
  if (bytes.empty()) return true;
  char size[32];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  std::string chunk = size;
  chunk.append(bytes);
  chunk += "\r\n";
  return send(chunk);
}

/// What the end of the upstream's call means for the record.
void Connection::classify(const UpstreamEnd& end, CallRecord& record) const {
  using How = UpstreamEnd::How;
  const auto set = [&](const char* outcome, int status) {
    record.outcome = outcome;
    record.detail = end.detail;
    if (!answering_) record.status = status;
  };
  switch (end.how) {
    case How::kComplete:
      record.outcome = record.status < 400 ? "ok" : "upstream_error";
      return;
    case How::kStopped:
      record.outcome = "client_left";
      return;
    case How::kSilent:
      return set("upstream_silent", 504);
    case How::kNoConnection:
      return set("upstream_unreachable", 502);
    case How::kCut:
    case How::kTooLarge:
      return set("upstream_cut", 502);
  }
}

/// And for the box; false when the connection is to end.
bool Connection::conclude(const UpstreamEnd& end, const CallRecord& record) {
  using How = UpstreamEnd::How;
  if (end.how == How::kComplete) return keep_alive_ && send("0\r\n\r\n");
  // An answer that has begun is cut without its end, so that the box sees that it is not whole.
  if (end.how == How::kStopped || answering_) return false;
  return answer_error(record.status, "api_error", "relay: " + record.outcome + ": " + end.detail,
                      keep_alive_);
}

bool Connection::refuse(const Refusal& refusal, CallRecord& record, bool keep) {
  record.outcome = "refused";
  record.status = refusal.status;
  record.detail = refusal.code;
  const bool kept = log_.write(record);
  return answer_error(refusal.status, "invalid_request_error", refusal.message, keep && kept) &&
         kept;
}

bool Connection::answer_error(int status, std::string_view type, std::string_view message,
                              bool keep) {
  const std::string body = error_body(options_.api, type, message);
  const bool sent =
      send(status_line(status) +
           "content-type: application/json\r\ncontent-length: " + std::to_string(body.size()) +
           "\r\n" + (keep ? "" : "connection: close\r\n") + "\r\n" + body);
  if (sent && !keep) linger();
  return sent && keep;
}

bool Connection::client_is_there() const {
  char byte;
  const ssize_t n = ::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

bool Connection::send(std::string_view bytes) {
  const double deadline = boot_seconds() + options_.write_seconds;
  while (!bytes.empty()) {
    const ssize_t n =
        ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      if (!ready(socket_.get(), POLLOUT, deadline)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

/// Reads a little of what still comes, so that our last words are not lost to a reset.
void Connection::linger() {
  ::shutdown(socket_.get(), SHUT_WR);
  const double deadline = boot_seconds() + 1;
  for (size_t total = 0; total < (4u << 20); total += buffer_.size()) {
    buffer_.clear();
    if (read_more(deadline) != Got::kData) return;
  }
}

}  // namespace cbench::relay
