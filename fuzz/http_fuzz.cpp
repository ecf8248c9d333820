// Fuzzes what a server answers: the input, cut at its first 0xff bytes, is what successive
// connections to a loopback server get. A client follows redirects and reads waits and numbers from
// whatever it takes for headers; it ends with an answer or an error, soon.
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fetch/http.h"
#include "util/error.h"

namespace {

/// Listens for the life of the process.
struct Listener {
  int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string url;
  Listener() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    if (::bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 || ::listen(fd, 16) != 0 ||
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length) != 0) {
      std::abort();
    }
    url = "http://127.0.0.1:" + std::to_string(ntohs(at.sin_port)) + "/a/b?c=d";
  }
};

/// Answers each connection with the next piece and hangs up; the last piece serves all further
/// ones.
void serve(int listener, std::string_view answers) {
  while (true) {
    const int peer = ::accept(listener, nullptr, nullptr);
    if (peer < 0) return;
    char request[8192];
    if (::recv(peer, request, sizeof request, 0) <= 0) {  // an empty connection ends the round
      ::close(peer);
      return;
    }
    const size_t end = answers.find('\xff');
    const std::string_view answer = answers.substr(0, end);
    (void)::send(peer, answer.data(), answer.size(), MSG_NOSIGNAL);
    ::close(peer);
    if (end != std::string_view::npos) answers.remove_prefix(end + 1);
  }
}

void end_round(const std::string& url) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<uint16_t>(std::atoi(url.c_str() + url.rfind(':') + 1)));
  if (::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) std::abort();
  ::close(fd);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const Listener listener;
  ::unsetenv("http_proxy");
  if (size > 32768) return 0;
  const std::string_view input(reinterpret_cast<const char*>(bytes), size);
  std::thread server([&] { serve(listener.fd, input); });
  cbench::HttpOptions options;
  options.stall_seconds = 1;
  options.exchange_seconds = 2;
  options.max_redirects = 4;
  try {
    cbench::HttpContext context(options);
    cbench::HttpClient client(context);
    cbench::HttpRequest request;
    request.url = listener.url;
    request.token = "secret";
    request.redirects = cbench::Redirects::kAll;
    request.max_body = 16384;
    const cbench::HttpResponse response = client.exchange(request);
    if (response.body.size() > 65536 || response.redirects > 4) std::abort();
    const auto wait = cbench::server_wait(response);
    if (wait && !(*wait >= 0)) std::abort();
    (void)response.headers.number("Content-Length");
  } catch (const cbench::Error&) {
    // A clear refusal is the expected outcome.
  }
  end_round(listener.url);
  server.join();
  return 0;
}
