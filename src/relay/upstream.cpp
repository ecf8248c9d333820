#include "relay/upstream.h"

#include <charconv>

#include <curl/curl.h>

#include "util/clock.h"
#include "util/error.h"

namespace cbench::relay {
namespace {

constexpr size_t kMaxHead = 128u << 10;

struct CurlGlobal {
  CurlGlobal() { curl_global_init(CURL_GLOBAL_DEFAULT); }
};

struct FieldList {
  curl_slist* list = nullptr;
  ~FieldList() { curl_slist_free_all(list); }
  void add(const std::string& line) { list = curl_slist_append(list, line.c_str()); }
};

/// The state of one call; curl's callbacks work on it.
struct Transfer {
  const UpstreamCall& call;
  const UpstreamOptions& options;
  int status = 0;
  std::vector<std::pair<std::string, std::string>> fields;
  size_t head_bytes = 0;
  double last_byte = boot_seconds();
  bool head_given = false, stopped = false, silent = false, too_large = false;

  bool take_field(std::string_view line) {
    head_bytes += line.size();
    too_large = head_bytes > kMaxHead;
    last_byte = boot_seconds();
    while (line.ends_with('\n') || line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("HTTP/")) {  // an interim answer may have come before
      fields.clear();
      const size_t space = line.find(' ');
      if (space != line.npos) {
        std::from_chars(line.data() + space + 1, line.data() + line.size(), status);
      }
    } else if (const size_t colon = line.find(':'); colon != line.npos) {
      std::string name(line.substr(0, colon));
      for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
      size_t from = line.find_first_not_of(" \t", colon + 1);
      fields.emplace_back(name, from == line.npos ? "" : line.substr(from));
    } else if (line.empty() && status >= 200 && !head_given) {
      // At once: a client may wait without a limit for these.
      head_given = true;
      stopped = !call.on_head(status, fields);
    }
    return !too_large && !stopped;
  }
  bool take_body(std::string_view bytes) {
    last_byte = boot_seconds();
    if (!head_given) return false;  // a status that is none, so no head was understood
    stopped = !call.on_body(bytes);
    return !stopped;
  }
  /// True to give up.
  bool watch() {
    silent = boot_seconds() - last_byte > options.silence_seconds;
    if (!stopped) stopped = !call.goes_on();
    return silent || stopped;
  }
};

size_t on_field(char* data, size_t size, size_t count, void* self) {
  return static_cast<Transfer*>(self)->take_field({data, size * count}) ? size * count : 0;
}
size_t on_bytes(char* data, size_t size, size_t count, void* self) {
  return static_cast<Transfer*>(self)->take_body({data, size * count}) ? size * count : 0;
}
int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<Transfer*>(self)->watch() ? 1 : 0;
}

UpstreamEnd::How judge(const Transfer& transfer, CURLcode code) {
  using How = UpstreamEnd::How;
  if (transfer.stopped) return How::kStopped;
  if (transfer.silent) return How::kSilent;
  if (transfer.too_large) return How::kTooLarge;
  if (code == CURLE_OK) return transfer.head_given ? How::kComplete : How::kCut;
  return transfer.status == 0 ? How::kNoConnection : How::kCut;
}

}  // namespace

Upstream::Upstream(const UpstreamOptions& options) : options_(options) {
  static const CurlGlobal global;
  easy_ = curl_easy_init();
  if (easy_ == nullptr) throw EnvironmentError("curl", "libcurl could not be started");
}

Upstream::~Upstream() { curl_easy_cleanup(easy_); }

UpstreamEnd Upstream::call(const UpstreamCall& call) {
  CURL* easy = easy_;
  Transfer transfer{call, options_};
  FieldList fields;
  for (const std::string& field : call.fields) fields.add(field);
  if (!options_.key_field.empty()) fields.add(options_.key_field);
  fields.add("Accept-Encoding: identity");
  fields.add("Expect:");
  char error[CURL_ERROR_SIZE] = {};
  const std::string url = options_.base_url + call.target;
  curl_easy_reset(easy);  // keeps the connections
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
  curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);  // the key goes to this upstream only
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                   static_cast<long>(options_.connect_seconds * 1000));
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, fields.list);
  curl_easy_setopt(easy, CURLOPT_POST, 1L);
  curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call.body->size()));
  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, call.body->data());
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, error);
  curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, &on_field);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &on_bytes);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, &on_progress);
  curl_easy_setopt(easy, CURLOPT_XFERINFODATA, &transfer);
  const CURLcode code = curl_easy_perform(easy);
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, nullptr);
  return {judge(transfer, code), *error != '\0' ? error : curl_easy_strerror(code)};
}

}  // namespace cbench::relay
