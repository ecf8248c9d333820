// The user's settings of the Hub client, from the environment variables it documents.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "fetch/hub.h"
#include "util/file.h"

namespace cbench {
namespace {

/// Without surrounding blanks and line breaks; anything odd inside is refused before it can become
/// part of a header.
std::string clean_token(const std::string& raw, const std::string& source) {
  const size_t begin = raw.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return "";
  const std::string token = raw.substr(begin, raw.find_last_not_of(" \t\r\n") - begin + 1);
  const bool good = token.size() <= 4096 && std::all_of(token.begin(), token.end(), [](char c) {
                      return c > 0x20 && c < 0x7f;
                    });
  if (!good) {
    throw UsageError("bad_token", source +
                                      " holds control characters, blanks or several lines; it "
                                      "must be one token");
  }
  return token;
}

std::string read_token(const Environment& get, const std::string& home) {
  if (const auto token = get("HF_TOKEN")) return clean_token(*token, "HF_TOKEN");
  if (is_true(get("HF_HUB_DISABLE_IMPLICIT_TOKEN").value_or(""))) return "";
  const std::string path = get("HF_TOKEN_PATH").value_or(home.empty() ? "" : home + "/token");
  if (path.empty() || !std::filesystem::is_regular_file(path)) return "";
  return clean_token(read_file(path, 64u << 10), path);
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
}

bool is_true(std::string_view text) {
  std::string upper(text);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return upper == "1" || upper == "ON" || upper == "YES" || upper == "TRUE";
}

HubOptions hub_options_from(const Environment& environment) {
  const Environment get = [&](const std::string& name) {
    auto value = environment(name);
    return value && value->empty() ? std::nullopt : value;
  };
  HubOptions options;
  if (auto endpoint = get("HF_ENDPOINT")) {
    while (endpoint->ends_with('/')) endpoint->pop_back();
    try {
      parse_origin(*endpoint);
    } catch (const TransferError& error) {
      throw UsageError("bad_endpoint", std::string("HF_ENDPOINT: ") + error.what());
    }
    options.endpoint = *endpoint;
  }
  std::string home = get("HF_HOME").value_or("");
  if (home.empty()) {
    const auto xdg = get("XDG_CACHE_HOME");
    const auto user = get("HOME");
    if (xdg) home = *xdg + "/huggingface";
    if (!xdg && user) home = *user + "/.cache/huggingface";
  }
  options.token = read_token(get, home);
  options.cache = get("HF_HUB_CACHE").value_or(home.empty() ? "" : home + "/hub");
  options.offline = is_true(get("HF_HUB_OFFLINE").value_or("")) ||
                    is_true(get("TRANSFORMERS_OFFLINE").value_or(""));
  return options;
}

}  // namespace cbench
