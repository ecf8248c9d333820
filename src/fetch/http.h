// HTTP for downloads (libcurl): one exchange at a time, redirects followed by our own rules,
// bounded bodies, stalls noticed, retries with the server's own waits (RateLimit, Retry-After).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "util/error.h"

namespace cbench {

struct HttpOptions {
  std::string user_agent;         ///< "" = "cbench/<version>"
  double connect_seconds = 10;    ///< DNS, TCP and TLS together
  double stall_seconds = 30;      ///< fewer than stall_bytes a second over this long = stalled
  double stall_bytes = 1024;      ///< per second
  double exchange_seconds = 120;  ///< whole exchange, for bounded (metadata) bodies only
  int max_redirects = 10;
  std::vector<double> retry_waits = {1, 2, 4, 8, 8};  ///< seconds before each further try
  double longest_wait = 900;  ///< a server that asks for more is reported, not waited for
  double time_scale = 1;      ///< multiplies every wait (tests make it small)
};

/// Header fields in the order they came; names compare without case.
class HttpHeaders {
 public:
  void add(std::string name, std::string value);
  void clear() { fields_.clear(); }
  /// First value of `name`, or nullptr.
  const std::string* find(std::string_view name) const;
  std::string get(std::string_view name) const;
  std::optional<int64_t> number(
      std::string_view name) const;  ///< decimal digits only, else nullopt
  const std::vector<std::pair<std::string, std::string>>& fields() const { return fields_; }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

struct HttpResponse {
  int status = 0;
  HttpHeaders headers;
  std::string url;           ///< of the last hop
  int redirects = 0;         ///< followed
  bool left_origin = false;  ///< a redirect changed scheme, host or port: the token was dropped
  std::string body;          ///< without a sink; of an error answer its first 64 KiB
  bool stopped = false;      ///< the sink asked to stop
  bool ok() const { return status >= 200 && status < 300; }
};

/// The exchange itself failed: no usable answer. Codes: network, stalled, timeout, tls, proxy,
/// redirect_loop, insecure_redirect, bad_redirect, bad_url, body_too_large, interrupted.
class TransferError : public EnvironmentError {
 public:
  TransferError(std::string_view code, const std::string& message, bool retryable)
      : EnvironmentError(code, message), retryable_(retryable) {}
  bool retryable() const { return retryable_; }

 private:
  bool retryable_;
};

enum class Redirects { kNone, kSameOrigin, kAll };

struct HttpRequest {
  std::string method = "GET";
  std::string url;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string token;  ///< sent as a bearer token to this URL's origin and to no other
  std::string body;   ///< of a POST
  Redirects redirects = Redirects::kNone;
  uint64_t max_body = 64u << 20;
  /// Takes the body of a 2xx answer in blocks; false stops the exchange. Its exceptions pass
  /// through.
  std::function<bool(const HttpResponse&, std::string_view)> sink;
};

/// Scheme, host (lower case) and port of a URL: what a token belongs to.
struct Origin {
  std::string scheme, host, port;
  bool operator==(const Origin&) const = default;
  bool loopback() const;
  std::string text() const { return scheme + "://" + host + ":" + port; }
};
/// Throws TransferError "bad_url" unless http(s), without user name or password.
Origin parse_origin(const std::string& url);
/// RFC 3986 resolution of a Location or Link against `base`; the query is kept as it is.
std::string resolve_url(const std::string& base, const std::string& reference);
/// Percent-encodes all but unreserved characters; `keep` names further ones to leave (e.g. "/").
std::string url_encode(std::string_view text, std::string_view keep = {});

/// What the clients of one fetch share: options, cancellation, waits that a server imposed.
class HttpContext {
 public:
  explicit HttpContext(HttpOptions options = {}, const std::atomic<bool>* interrupt = nullptr)
      : options_(std::move(options)), interrupt_(interrupt) {}
  const HttpOptions& options() const { return options_; }
  const std::atomic<bool>* interrupt() const { return interrupt_; }
  void stop() { stopped_ = true; }
  bool cancelled() const { return stopped_ || (interrupt_ != nullptr && *interrupt_); }
  void check() const;  ///< throws TransferError "interrupted" when cancelled
  /// Sleeps (unscaled), waking early to throw when cancelled.
  void sleep(double seconds) const;
  /// No request to `origin` starts before now + seconds (unscaled).
  void hold(const std::string& origin, double seconds);
  void wait_for_turn(const std::string& origin);

 private:
  HttpOptions options_;
  const std::atomic<bool>* interrupt_;
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::map<std::string, double> held_until_;
};

/// Seconds an answer asks us to wait: RateLimit's reset + 1 when its remaining count is 0, else
/// Retry-After (seconds or date); nullopt when it asks for nothing.
std::optional<double> server_wait(const HttpResponse& response);
/// 429, 500, 502, 503, 504.
bool retryable_status(int status);

/// The waits between the tries of one thing.
class Backoff {
 public:
  explicit Backoff(HttpContext& context) : context_(context) {}
  /// Waits for the next try; false when the tries are used up or the server asks for too long.
  bool wait(const HttpResponse* response = nullptr);
  void progress() { tries_ = 0; }

 private:
  HttpContext& context_;
  size_t tries_ = 0;
};

/// One connection pool for one thread.
class HttpClient {
 public:
  explicit HttpClient(HttpContext& context);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// One exchange with the asked redirects; throws TransferError.
  HttpResponse exchange(const HttpRequest& request);
  /// exchange() with the retry policy: the last answer, whatever its status, or the last error.
  HttpResponse send(const HttpRequest& request);
  HttpContext& context() { return context_; }

 private:
  struct Transfer;
  HttpResponse hop(const HttpRequest& request, const std::string& url, bool with_token);
  void set_up(Transfer& transfer, const HttpRequest& request, const std::string& url,
              bool with_token);
  void drive(Transfer& transfer, const HttpRequest& request);

  HttpContext& context_;
  void* easy_;   // CURL*
  void* multi_;  // CURLM*
};

}  // namespace cbench
