// Stop strings.
#include "eval/grading/stops.h"

#include <algorithm>
#include <utility>

namespace cbench {

size_t find_stop(std::string_view text, const std::vector<std::string>& stops) {
  size_t earliest = std::string_view::npos;
  for (const std::string& stop : stops) {
    if (!stop.empty()) earliest = std::min(earliest, text.find(stop));
  }
  return earliest;
}

std::string_view cut_at_stop(std::string_view text, const std::vector<std::string>& stops) {
  return text.substr(0, find_stop(text, stops));
}

std::string StopMatcher::append(std::string_view chunk) {
  if (hit_) return "";
  held_ += chunk;
  // A match can only begin where text was held back or later: decided text holds no beginning.
  const size_t at = find_stop(held_, stops_);
  if (at != std::string::npos) {
    // An earlier beginning may still be open ("ab" against stops "abc" and "b"): it would need more
    // text than the stop already found, and generation ends here, so the found one counts.
    hit_ = true;
    std::string out = held_.substr(0, at);
    held_.clear();
    return out;
  }
  size_t keep = 0;  // length of the longest suffix that begins a stop
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.empty() ? 0 : stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace cbench
