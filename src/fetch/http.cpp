#include "fetch/http.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

#include <curl/curl.h>
#include <strings.h>

#include "util/clock.h"
#include "util/log.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr size_t kMaxHeaderBytes = 256u << 10;
constexpr size_t kMaxErrorBody = 64u << 10;
constexpr int kPollMilliseconds = 50;

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && std::string_view(" \t\r\n").find(text.back()) != text.npos) {
    text.remove_suffix(1);
  }
  return text;
}

std::optional<int64_t> parse_count(std::string_view text) {
  if (text.empty() || text.size() > 18) return std::nullopt;
  int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

struct CurlGlobal {
  CurlGlobal() { curl_global_init(CURL_GLOBAL_DEFAULT); }
};

struct HeaderList {
  curl_slist* list = nullptr;
  ~HeaderList() { curl_slist_free_all(list); }
  void add(const std::string& line) {
    if (line.find_first_of("\r\n") != line.npos) {
      throw UsageError("bad_header", "an HTTP header would hold a line break");
    }
    list = curl_slist_append(list, line.c_str());
  }
};

}  // namespace

void HttpHeaders::add(std::string name, std::string value) {
  fields_.emplace_back(std::move(name), std::move(value));
}

const std::string* HttpHeaders::find(std::string_view name) const {
  for (const auto& [key, value] : fields_) {
    if (equals_ignoring_case(key, name)) return &value;
  }
  return nullptr;
}

std::string HttpHeaders::get(std::string_view name) const {
  const std::string* value = find(name);
  return value != nullptr ? *value : "";
}

std::optional<int64_t> HttpHeaders::number(std::string_view name) const {
  const std::string* value = find(name);
  return value != nullptr ? parse_count(*value) : std::nullopt;
}

void HttpContext::check() const {
  if (cancelled()) {
    throw TransferError("interrupted",
                        "interrupted; what arrived is kept, run the same command to go on", false);
  }
}

void HttpContext::sleep(double seconds) const {
  const double until = boot_seconds() + seconds * options_.time_scale;
  while (true) {
    check();
    const double left = until - boot_seconds();
    if (left <= 0) return;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, 0.05)));
  }
}

void HttpContext::hold(const std::string& origin, double seconds) {
  const std::lock_guard lock(mutex_);
  double& until = held_until_[origin];
  until = std::max(until, boot_seconds() + seconds * options_.time_scale);
}

void HttpContext::wait_for_turn(const std::string& origin) {
  while (true) {
    check();
    double left = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto found = held_until_.find(origin);
      if (found != held_until_.end()) left = found->second - boot_seconds();
    }
    if (left <= 0) return;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, 0.05)));
  }
}

bool retryable_status(int status) {
  return status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
}

namespace {

/// `"resolvers";r=0;t=55` (draft-ietf-httpapi-ratelimit-headers): {remaining, reset seconds}.
std::optional<std::pair<int64_t, int64_t>> parse_rate_limit(std::string_view item) {
  std::optional<int64_t> remaining, reset;
  while (!item.empty()) {
    const size_t semicolon = item.find(';');
    const std::string_view field = trim(item.substr(0, semicolon));
    if (field.starts_with("r=")) remaining = parse_count(field.substr(2));
    if (field.starts_with("t=")) reset = parse_count(field.substr(2));
    item.remove_prefix(semicolon == item.npos ? item.size() : semicolon + 1);
  }
  if (!remaining || !reset) return std::nullopt;
  return std::pair{*remaining, *reset};
}

std::optional<double> rate_limit_wait(const HttpHeaders& headers) {
  std::optional<double> wait;
  for (const auto& [name, value] : headers.fields()) {
    if (!equals_ignoring_case(name, "RateLimit")) continue;
    std::string_view rest = value;
    while (!rest.empty()) {
      const size_t comma = rest.find(',');
      const auto limit = parse_rate_limit(rest.substr(0, comma));
      if (limit && limit->first == 0) {
        wait = std::max(wait.value_or(0), static_cast<double>(limit->second) + 1);
      }
      rest.remove_prefix(comma == rest.npos ? rest.size() : comma + 1);
    }
  }
  return wait;
}

}  // namespace

std::optional<double> server_wait(const HttpResponse& response) {
  if (const auto wait = rate_limit_wait(response.headers)) return wait;
  const std::string* after = response.headers.find("Retry-After");
  if (after == nullptr) return std::nullopt;
  if (const auto seconds = parse_count(*after)) return static_cast<double>(*seconds);
  const time_t date = curl_getdate(after->c_str(), nullptr);
  if (date < 0) return std::nullopt;
  return std::max(0.0, std::difftime(date, std::time(nullptr)));
}

bool Backoff::wait(const HttpResponse* response) {
  const HttpOptions& options = context_.options();
  if (tries_ >= options.retry_waits.size()) return false;
  double seconds = options.retry_waits[tries_++];
  if (response != nullptr && (response->status == 429 || response->status == 503)) {
    if (const auto asked = server_wait(*response)) {
      if (*asked > options.longest_wait) return false;
      seconds = std::max(*asked, 0.1);
      // All connections to this server wait: asking again from another thread would only prolong
      // it.
      if (response->status == 429) context_.hold(parse_origin(response->url).text(), seconds);
    }
  }
  context_.sleep(seconds);
  return true;
}

/// The state of one hop; curl's callbacks work on it.
struct HttpClient::Transfer {
  HttpResponse response;
  const HttpRequest* request = nullptr;
  HeaderList headers;
  size_t header_bytes = 0;
  uint64_t body_bytes = 0;    // as delivered to us
  uint64_t window_bytes = 0;  // since window_start
  double window_start = 0;
  double started = 0;
  bool too_large = false;
  std::exception_ptr failure;
  char error[CURL_ERROR_SIZE] = {};

  static size_t on_header(char* data, size_t size, size_t count, void* self) {
    return static_cast<Transfer*>(self)->take_header({data, size * count}) ? size * count : 0;
  }
  static size_t on_body(char* data, size_t size, size_t count, void* self) {
    return static_cast<Transfer*>(self)->take_body({data, size * count}) ? size * count : 0;
  }
  bool take_header(std::string_view line);
  bool take_body(std::string_view bytes);
};

bool HttpClient::Transfer::take_header(std::string_view line) {
  header_bytes += line.size();
  if (header_bytes > kMaxHeaderBytes) {
    too_large = true;
    return false;
  }
  line = trim(line);
  if (line.starts_with("HTTP/")) {  // a 100 Continue or a proxy's answer may precede the real one
    response.headers.clear();
    const size_t space = line.find(' ');
    const auto status = parse_count(
        space == line.npos ? "" : line.substr(space + 1, line.find(' ', space + 1) - space - 1));
    response.status = static_cast<int>(status.value_or(0));
    return true;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos) return true;
  response.headers.add(std::string(line.substr(0, colon)),
                       std::string(trim(line.substr(colon + 1))));
  return true;
}

bool HttpClient::Transfer::take_body(std::string_view bytes) {
  window_bytes += bytes.size();
  body_bytes += bytes.size();
  if (request->sink && response.ok()) {
    const double before = boot_seconds();
    try {
      response.stopped = !request->sink(response, bytes);
    } catch (...) {
      failure = std::current_exception();
    }
    window_start += boot_seconds() - before;  // our own time is not the server's stall
    return !response.stopped && failure == nullptr;
  }
  const uint64_t limit = response.ok() ? request->max_body : kMaxErrorBody;
  if (response.body.size() + bytes.size() > limit) {
    if (!response.ok()) {  // enough of an error page to explain it
      response.body.append(bytes.substr(0, limit - response.body.size()));
      return false;
    }
    too_large = true;
    return false;
  }
  response.body.append(bytes);
  return true;
}

HttpClient::HttpClient(HttpContext& context) : context_(context) {
  static const CurlGlobal global;
  easy_ = curl_easy_init();
  multi_ = curl_multi_init();
  if (easy_ == nullptr || multi_ == nullptr) {
    throw EnvironmentError("curl", "libcurl could not be started");
  }
}

HttpClient::~HttpClient() {
  curl_easy_cleanup(easy_);
  curl_multi_cleanup(multi_);
}

void HttpClient::set_up(Transfer& transfer, const HttpRequest& request, const std::string& url,
                        bool with_token) {
  CURL* easy = easy_;
  curl_easy_reset(easy);
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                   static_cast<long>(context_.options().connect_seconds * 1000));
  curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 512L << 10);
  // Lengths, ranges and hashes are those of the plain bytes. A server that compresses nevertheless
  // is decoded, since this option also switches decoding on.
  curl_easy_setopt(easy, CURLOPT_ACCEPT_ENCODING, "identity");
  const std::string& agent = context_.options().user_agent;
  curl_easy_setopt(easy, CURLOPT_USERAGENT,
                   agent.empty() ? "cbench/" CBENCH_VERSION : agent.c_str());
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer.error);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, &Transfer::on_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &Transfer::on_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  if (request.method == "HEAD") {
    curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
  } else if (request.method == "POST") {
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request.body.size()));
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request.body.c_str());
  }
  for (const auto& [name, value] : request.headers) transfer.headers.add(name + ": " + value);
  if (with_token) transfer.headers.add("Authorization: Bearer " + request.token);
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, transfer.headers.list);
}

namespace {

TransferError curl_error(CURLcode code, const char* detail, const std::string& url) {
  const std::string what = std::string(*detail != '\0' ? detail : curl_easy_strerror(code));
  const std::string host = parse_origin(url).host;
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ISSUER_ERROR:
      return TransferError("tls",
                           host + ": the server's certificate is not trusted (" + what +
                               "); check the clock, the proxy and the CA certificates",
                           false);
    case CURLE_COULDNT_RESOLVE_PROXY:
      return TransferError("proxy", what + "; check the proxy variables (https_proxy, no_proxy)",
                           false);
    case CURLE_COULDNT_RESOLVE_HOST:
      return TransferError(
          "network", host + ": name not found (" + what + "); check the network and HF_ENDPOINT",
          true);
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return TransferError("bad_url", "not a usable URL: " + printable(url), false);
    case CURLE_BAD_CONTENT_ENCODING:
      return TransferError("bad_encoding", host + ": the compressed body is damaged: " + what,
                           true);
    case CURLE_OPERATION_TIMEDOUT:
      return TransferError("timeout", host + ": no connection in time (" + what + ")", true);
    default:
      return TransferError("network", host + ": " + what, true);
  }
}

}  // namespace

void HttpClient::drive(Transfer& transfer, const HttpRequest& request) {
  const HttpOptions& options = context_.options();
  struct Attached {
    CURLM* multi;
    CURL* easy;
    ~Attached() { curl_multi_remove_handle(multi, easy); }
  };
  curl_multi_add_handle(multi_, easy_);
  const Attached attached{multi_, easy_};
  transfer.started = transfer.window_start = boot_seconds();
  const std::string& url = transfer.response.url;
  while (true) {
    int running = 0;
    curl_multi_perform(multi_, &running);
    int queued = 0;
    if (const CURLMsg* message = curl_multi_info_read(multi_, &queued); message != nullptr) {
      const CURLcode code = message->data.result;
      if (transfer.failure) std::rethrow_exception(transfer.failure);
      if (transfer.too_large) {
        throw TransferError("body_too_large",
                            parse_origin(url).host + " sent more than expected (" +
                                std::to_string(request.max_body) + " bytes)",
                            false);
      }
      const bool cut_by_us = code == CURLE_WRITE_ERROR;
      if (code != CURLE_OK && !cut_by_us) throw curl_error(code, transfer.error, url);
      return;
    }
    context_.check();
    const double now = boot_seconds();
    if (now - transfer.window_start >= options.stall_seconds) {
      const double rate = static_cast<double>(transfer.window_bytes) / options.stall_seconds;
      if (rate < options.stall_bytes) {
        throw TransferError("stalled", parse_origin(url).host + ": the transfer stalled", true);
      }
      transfer.window_start = now;
      transfer.window_bytes = 0;
    }
    if (!request.sink && now - transfer.started > options.exchange_seconds) {
      throw TransferError("timeout", parse_origin(url).host + ": no complete answer in time", true);
    }
    curl_multi_poll(multi_, nullptr, 0, kPollMilliseconds, nullptr);
  }
}

HttpResponse HttpClient::hop(const HttpRequest& request, const std::string& url, bool with_token) {
  context_.wait_for_turn(parse_origin(url).text());
  Transfer transfer;
  transfer.request = &request;
  transfer.response.url = url;
  set_up(transfer, request, url, with_token);
  drive(transfer, request);
  if (transfer.response.status == 0) {
    throw TransferError("network", parse_origin(url).host + ": no HTTP answer", true);
  }
  return std::move(transfer.response);
}

namespace {
bool is_redirect(const HttpResponse& response) {
  const int status = response.status;
  const bool moved =
      status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
  return moved && response.headers.find("Location") != nullptr;
}
}  // namespace

HttpResponse HttpClient::exchange(const HttpRequest& asked) {
  HttpRequest request = asked;
  std::string url = request.url;
  Origin origin = parse_origin(url);
  bool with_token = !request.token.empty();
  if (with_token && origin.scheme == "http" && !origin.loopback()) {
    spdlog::warn("the token is not sent to {}: plain http", origin.host);
    with_token = false;
  }
  bool left = false;
  for (int followed = 0;; ++followed) {
    HttpResponse response = hop(request, url, with_token);
    response.redirects = followed;
    response.left_origin = left;
    if (!is_redirect(response) || request.redirects == Redirects::kNone) return response;
    const std::string next = resolve_url(url, response.headers.get("Location"));
    const Origin target = parse_origin(next);
    if (target != origin && request.redirects == Redirects::kSameOrigin) return response;
    if (followed >= context_.options().max_redirects) {
      throw TransferError("redirect_loop",
                          printable(asked.url) + ": more than " +
                              std::to_string(context_.options().max_redirects) + " redirects",
                          false);
    }
    if (origin.scheme == "https" && target.scheme == "http" && !target.loopback()) {
      throw TransferError(
          "insecure_redirect",
          origin.host + " redirects from https to http at " + target.host + "; refused", false);
    }
    if (target != origin) {  // from here on the token stays behind, even if a hop leads back
      with_token = false;
      left = true;
    }
    const bool to_get =
        response.status == 303 || (response.status < 303 && request.method == "POST");
    if (to_get && request.method != "HEAD") {
      request.method = "GET";
      request.body.clear();
    }
    url = next;
    origin = target;
  }
}

HttpResponse HttpClient::send(const HttpRequest& request) {
  Backoff backoff(context_);
  while (true) {
    try {
      HttpResponse response = exchange(request);
      if (!retryable_status(response.status) || !backoff.wait(&response)) return response;
    } catch (const TransferError& error) {
      if (!error.retryable() || !backoff.wait()) throw;
    }
  }
}

}  // namespace cbench
