#include "fetch/fake_hub.h"

#include <algorithm>
#include <chrono>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "util/hash.h"

namespace cbench {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool send_bytes(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

std::string decode(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      out += static_cast<char>(std::strtol(text.substr(i + 1, 2).c_str(), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string json_escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

/// Reads one request; false when the client went away.
bool read_request(int fd, const std::atomic<bool>& stop, std::string& pending, FakeRequest& out) {
  size_t end = 0;
  while ((end = pending.find("\r\n\r\n")) == std::string::npos) {
    pollfd poller{fd, POLLIN, 0};
    if (stop) return false;
    if (::poll(&poller, 1, 20) == 0) continue;
    char block[4096];
    const ssize_t n = ::recv(fd, block, sizeof block, 0);
    if (n <= 0) return false;
    pending.append(block, static_cast<size_t>(n));
  }
  std::string head = pending.substr(0, end + 2);
  pending.erase(0, end + 4);
  const size_t line_end = head.find("\r\n");
  const std::string line = head.substr(0, line_end);
  const size_t space = line.find(' ');
  out.method = line.substr(0, space);
  out.target = line.substr(space + 1, line.rfind(' ') - space - 1);
  out.path = decode(out.target.substr(0, out.target.find('?')));
  if (const size_t mark = out.target.find('?'); mark != std::string::npos) {
    out.query = out.target.substr(mark + 1);
  }
  for (size_t at = line_end + 2; at < head.size();) {
    const size_t next = head.find("\r\n", at);
    const std::string field = head.substr(at, next - at);
    const size_t colon = field.find(": ");
    if (colon != std::string::npos)
      out.headers[lower(field.substr(0, colon))] = field.substr(colon + 2);
    at = next + 2;
  }
  return true;
}

}  // namespace

char pattern_byte(int64_t i) { return static_cast<char>((i * 2654435761LL + (i >> 13)) >> 7); }

std::string pattern(int64_t from, int64_t size) {
  std::string out(static_cast<size_t>(size), '\0');
  for (int64_t i = 0; i < size; ++i) out[static_cast<size_t>(i)] = pattern_byte(from + i);
  return out;
}

std::string FakeRequest::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found != headers.end() ? found->second : "";
}

FakeServer::FakeServer() {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address);
  ::listen(listener_, 128);
  socklen_t size = sizeof address;
  ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { accept_loop(); });
}

FakeServer::~FakeServer() {
  stop_ = true;
  acceptor_.join();
  for (std::thread& thread : threads_) thread.join();
  ::close(listener_);
}

void FakeServer::handle(Handler handler) {
  const std::lock_guard lock(mutex_);
  handler_ = std::move(handler);
}

std::vector<FakeRequest> FakeServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void FakeServer::forget_requests() {
  const std::lock_guard lock(mutex_);
  requests_.clear();
}

size_t FakeServer::count(const std::string& part) const {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::count_if(
      requests_.begin(), requests_.end(),
      [&](const FakeRequest& r) { return r.target.find(part) != std::string::npos; }));
}

void FakeServer::accept_loop() {
  while (!stop_) {
    pollfd poller{listener_, POLLIN, 0};
    if (::poll(&poller, 1, 20) <= 0) continue;
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    threads_.emplace_back([this, fd] { serve(fd); });
  }
}

void FakeServer::serve(int fd) {
  std::string pending;
  while (!stop_) {
    FakeRequest request;
    if (!read_request(fd, stop_, pending, request)) break;
    Handler handler;
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
      handler = handler_;
    }
    const FakeReply reply = handler ? handler(request) : FakeReply{404, {}, ""};
    send_reply(fd, request, reply);
    if (reply.cut_after >= 0 || reply.content_length == -2 || reply.stall) break;
  }
  ::close(fd);
}

void FakeServer::send_reply(int fd, const FakeRequest& request, const FakeReply& reply) {
  const int64_t size =
      reply.generated >= 0 ? reply.generated : static_cast<int64_t>(reply.body.size());
  std::string head = "HTTP/1.1 " + std::to_string(reply.status) + " X\r\n";
  for (const auto& [name, value] : reply.headers) head += name + ": " + value + "\r\n";
  if (reply.content_length != -2) {
    head += "Content-Length: " +
            std::to_string(reply.content_length >= 0 ? reply.content_length : size) + "\r\n";
  } else {
    head += "Connection: close\r\n";
  }
  if (!send_bytes(fd, head + "\r\n") || request.method == "HEAD") return;
  const auto pause = [&](double seconds) {
    for (double slept = 0; slept < seconds && !stop_; slept += 0.005) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  };
  if (reply.stall) return pause(20);
  const int64_t until = reply.cut_after >= 0 ? std::min(size, reply.cut_after) : size;
  if (reply.drip_seconds > 0) {
    for (int64_t i = 0; i < until && !stop_; ++i) {
      if (!send_bytes(fd, reply.body.substr(static_cast<size_t>(i), 1))) return;
      pause(reply.drip_seconds);
    }
    return;
  }
  if (reply.generated < 0) {
    send_bytes(fd, std::string_view(reply.body).substr(0, static_cast<size_t>(until)));
    return;
  }
  constexpr int64_t kBlock = 1 << 18;
  for (int64_t at = 0; at < until && !stop_; at += kBlock) {
    const int64_t n = std::min(kBlock, until - at);
    if (!send_bytes(fd, pattern(reply.generated_from + at, n))) return;
  }
}

FakeReply ranged(const FakeRequest& request, const std::string& full) {
  FakeReply reply;
  const std::string range = request.header("range");
  if (range.empty()) {
    reply.body = full;
    return reply;
  }
  const size_t dash = range.find('-');
  const auto size = static_cast<int64_t>(full.size());
  const int64_t from = std::stoll(range.substr(6, dash - 6));
  const int64_t to = dash + 1 == range.size()
                         ? size - 1
                         : std::min<int64_t>(std::stoll(range.substr(dash + 1)), size - 1);
  if (from >= size || to < from) {
    reply.status = 416;
    reply.headers = {{"Content-Range", "bytes */" + std::to_string(size)}};
    return reply;
  }
  reply.status = 206;
  reply.headers = {{"Content-Range", "bytes " + std::to_string(from) + "-" + std::to_string(to) +
                                         "/" + std::to_string(size)}};
  reply.body = full.substr(static_cast<size_t>(from), static_cast<size_t>(to - from + 1));
  return reply;
}

std::string git_sha1(const std::string& content) {
  Hasher hasher(Hasher::Kind::kSha1);
  const std::string head = "blob " + std::to_string(content.size());
  hasher.update({head.c_str(), head.size() + 1});
  hasher.update(content);
  return hasher.hex();
}

FakeHub::FakeHub() {
  server.handle([this](const FakeRequest& request) { return answer(request); });
}

void FakeHub::add(const std::string& path, const std::string& content, bool lfs) {
  files[path] = {content, lfs};
}

FakeReply FakeHub::answer(const FakeRequest& request) {
  if (before) {
    FakeReply special = before(request);
    if (special.status != 0) return special;
  }
  const std::string api = "/api/" + type + "/" + repo;
  if (request.path.starts_with(api + "/revision/")) {
    return {200, {{"Content-Type", "application/json"}}, "{\"id\":\"x\",\"sha\":\"" + sha + "\"}"};
  }
  if (request.path == api + "/tree/" + sha) return tree(request);
  const std::string base = (type == "models" ? "/" : "/datasets/") + repo + "/resolve/" + sha + "/";
  if (request.path.starts_with(base)) return resolve(request, request.path.substr(base.size()));
  return {404, {{"X-Error-Code", "RepoNotFound"}}, "{\"error\":\"Repository not found\"}"};
}

FakeReply FakeHub::tree(const FakeRequest& request) const {
  size_t from = 0;
  if (const size_t mark = request.query.find("cursor="); mark != std::string::npos) {
    from = std::stoul(request.query.substr(mark + 7));
  }
  std::string body = "[";
  auto at = std::next(files.begin(), static_cast<std::ptrdiff_t>(std::min(from, files.size())));
  for (size_t n = 0; n < page_size && at != files.end(); ++n, ++at) {
    const auto& [path, file] = *at;
    if (body.size() > 1) body += ",";
    const std::string size = std::to_string(file.content.size());
    const std::string hash = file.lfs ? sha256_hex(file.content) : git_sha1(file.content);
    body += "{\"type\":\"file\",\"path\":\"" + json_escape(path) + "\",\"size\":" + size +
            ",\"oid\":\"" + (file.lfs ? std::string(40, '1') : hash) + "\"";
    if (file.lfs)
      body += ",\"lfs\":{\"oid\":\"" + hash + "\",\"size\":" + size + ",\"pointerSize\":130}";
    body += "}";
  }
  FakeReply reply{200, {{"Content-Type", "application/json"}}, body + "]"};
  if (from + page_size < files.size()) {
    reply.headers.emplace_back("Link", "<" + url() + "/api/" + type + "/" + repo + "/tree/" + sha +
                                           "?recursive=true&cursor=" +
                                           std::to_string(from + page_size) + ">; rel=\"next\"");
  }
  return reply;
}

FakeReply FakeHub::resolve(const FakeRequest& request, const std::string& path) const {
  const auto found = files.find(path);
  if (found == files.end()) return {404, {{"X-Error-Code", "EntryNotFound"}}, ""};
  FakeReply reply = ranged(request, found->second.content);
  const std::string etag =
      found->second.lfs ? sha256_hex(found->second.content) : git_sha1(found->second.content);
  reply.headers.emplace_back("ETag", "\"" + etag + "\"");
  reply.headers.emplace_back("X-Repo-Commit", sha);
  if (found->second.lfs) {
    reply.headers.emplace_back("X-Linked-Etag", "\"" + etag + "\"");
    reply.headers.emplace_back("X-Linked-Size", std::to_string(found->second.content.size()));
  }
  return reply;
}

}  // namespace cbench
