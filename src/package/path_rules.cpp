#include "package/path_rules.h"

#include "util/text.h"

namespace cbench {
namespace {

/// The code point that starts at `at` of valid UTF-8; `at` moves behind it.
uint32_t next_code_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(text[i]));
  };
  const uint32_t lead = byte(at++);
  if (lead < 0x80) return lead;
  const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
  uint32_t code = lead & (0x3fu >> more);
  for (int i = 0; i < more; ++i) code = code << 6 | (byte(at++) & 0x3f);
  return code;
}

/// Controls, line and paragraph separators, and marks that reorder or hide text in a listing.
bool is_invisible(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x200b && code <= 0x200f) ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f) || code == 0xfeff;
}

}  // namespace

std::string bad_name_reason(std::string_view name) {
  if (name.empty() || name == "." || name == "..") return "is not a name";
  if (name.size() > 255) return "is longer than 255 bytes";
  if (!is_utf8(name)) return "is not valid UTF-8";
  if (name.find('/') != std::string_view::npos) return "holds a slash";
  if (name.find('\\') != std::string_view::npos) return "holds a backslash";
  if (name.front() == ' ' || name.back() == ' ') return "starts or ends with a blank";
  for (size_t at = 0; at < name.size();) {
    if (is_invisible(next_code_point(name, at))) return "holds a control character";
  }
  return "";
}

bool is_plain_path(std::string_view path) {
  while (true) {
    const size_t slash = path.find('/');
    if (!bad_name_reason(path.substr(0, slash)).empty()) return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

}  // namespace cbench
