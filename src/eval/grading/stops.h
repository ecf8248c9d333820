// Stop strings: cutting a finished text, and watching a growing one without leaking half a stop.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cbench {

/// Where the earliest match of any stop begins, whatever the order of the list; npos if none. Empty
/// stops never match.
size_t find_stop(std::string_view text, const std::vector<std::string>& stops);

/// `text` up to the earliest stop.
std::string_view cut_at_stop(std::string_view text, const std::vector<std::string>& stops);

/// Feeds on chunks of a growing text. Text that may still turn out to be the beginning of a stop is
/// held back until it is decided.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  /// The text that has become certain through this chunk. After hit() always "".
  std::string append(std::string_view chunk);
  /// End of generation: what was held back.
  std::string finish();
  bool hit() const { return hit_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool hit_ = false;
};

}  // namespace cbench
