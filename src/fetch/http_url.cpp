// URLs by libcurl's parser: origins, relative references, percent-encoding.
#include <algorithm>
#include <cctype>

#include <curl/curl.h>

#include "fetch/http.h"
#include "util/text.h"

namespace cbench {
namespace {

struct UrlHandle {
  CURLU* url = curl_url();
  ~UrlHandle() { curl_url_cleanup(url); }
  std::string get(CURLUPart part, unsigned flags = 0) const {
    char* text = nullptr;
    if (curl_url_get(url, part, &text, flags) != CURLUE_OK) return "";
    std::string out = text;
    curl_free(text);
    return out;
  }
};

TransferError bad_url(std::string_view what, std::string_view url) {
  return TransferError("bad_url", std::string(what) + ": " + printable(url), false);
}

}  // namespace

bool Origin::loopback() const {
  return host == "localhost" || host.starts_with("127.") || host == "[::1]" || host == "::1";
}

Origin parse_origin(const std::string& url) {
  const UrlHandle handle;
  if (curl_url_set(handle.url, CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) {
    throw bad_url("not a URL", url);
  }
  Origin origin{handle.get(CURLUPART_SCHEME), handle.get(CURLUPART_HOST),
                handle.get(CURLUPART_PORT, CURLU_DEFAULT_PORT)};
  std::transform(origin.host.begin(), origin.host.end(), origin.host.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (origin.scheme != "http" && origin.scheme != "https") {
    throw bad_url("only http and https are fetched", url);
  }
  if (!handle.get(CURLUPART_USER).empty() || !handle.get(CURLUPART_PASSWORD).empty()) {
    throw TransferError(
        "bad_url", "a URL with a user name in it is refused (host " + printable(origin.host) + ")",
        false);
  }
  return origin;
}

std::string resolve_url(const std::string& base, const std::string& reference) {
  const UrlHandle handle;
  if (curl_url_set(handle.url, CURLUPART_URL, base.c_str(), 0) != CURLUE_OK) {
    throw bad_url("not a URL", base);
  }
  if (curl_url_set(handle.url, CURLUPART_URL, reference.c_str(), 0) != CURLUE_OK) {
    throw TransferError("bad_redirect", "unusable redirect to " + printable(reference), false);
  }
  curl_url_set(handle.url, CURLUPART_FRAGMENT, nullptr, 0);
  return handle.get(CURLUPART_URL);
}

std::string url_encode(std::string_view text, std::string_view keep) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-_.~").find(c) != std::string_view::npos;
    if (plain || keep.find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return out;
}

}  // namespace cbench
