// A server on loopback that speaks enough of the Hub protocol to fetch from, and misbehaves on
// demand: it answers from a script of handlers and records every request. Raw sockets, so that
// bodies can stall, be cut, or lie about their length.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace cbench {

struct FakeRequest {
  std::string method, target, path, query, body;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string header(const std::string& name) const;
};

struct FakeReply {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  int64_t content_length = -1;  // -1: of the body; -2: none (the connection's end ends it)
  int64_t cut_after = -1;       // close after this many bytes of the body
  int64_t generated = -1;       // a body of this many pattern bytes, never held in memory
  int64_t generated_from = 0;   // at this offset of the pattern
  double drip_seconds = 0;      // pause between single bytes
  bool stall = false;           // headers, then silence
};

class FakeServer {
 public:
  using Handler = std::function<FakeReply(const FakeRequest&)>;
  FakeServer();
  ~FakeServer();
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  void handle(Handler handler);
  std::vector<FakeRequest> requests() const;
  void forget_requests();
  size_t count(const std::string& part_of_target) const;

 private:
  void accept_loop();
  void serve(int fd);
  void send_reply(int fd, const FakeRequest& request, const FakeReply& reply);

  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  Handler handler_;
  std::vector<FakeRequest> requests_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

/// Byte i of the generated body.
char pattern_byte(int64_t i);
std::string pattern(int64_t from, int64_t size);

/// Applies a Range header to `full`: 206, 416 or 200.
FakeReply ranged(const FakeRequest& request, const std::string& full);

/// A repository on a FakeServer: revision, tree, resolve. Each part can be overridden.
class FakeHub {
 public:
  struct File {
    std::string content;
    bool lfs = false;
  };
  FakeHub();
  std::string url() const { return server.url(); }
  FakeReply answer(const FakeRequest& request);
  void add(const std::string& path, const std::string& content, bool lfs);

  std::string repo = "org/name";
  std::string type = "models";
  std::string sha = std::string(40, 'a');
  std::map<std::string, File> files;
  size_t page_size = 1000;
  /// Asked first; a reply with status 0 means: go on as usual.
  std::function<FakeReply(const FakeRequest&)> before;
  FakeServer server;  // last: it stops before what its answers need goes

 private:
  FakeReply tree(const FakeRequest& request) const;
  FakeReply resolve(const FakeRequest& request, const std::string& path) const;
};

std::string git_sha1(const std::string& content);

}  // namespace cbench
