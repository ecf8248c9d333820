// One call of the relay to its upstream, with libcurl: the answer streams through as it comes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cbench::relay {

struct UpstreamOptions {
  std::string base_url;   ///< scheme://host[:port][/prefix], without a final slash
  std::string key_field;  ///< whole header line with the key; never logged
  double connect_seconds = 20;
  double silence_seconds = 660;  ///< without a byte; models think, and clients give up at 600 s
};

struct UpstreamCall {
  std::string target;               ///< path and query
  std::vector<std::string> fields;  ///< "name: value"
  const std::string* body = nullptr;
  /// Status and fields (lower-case names), once, before the first byte of the body; false stops.
  std::function<bool(int, const std::vector<std::pair<std::string, std::string>>&)> on_head;
  std::function<bool(std::string_view)> on_body;  ///< false stops
  std::function<bool()> goes_on;                  ///< asked at least every second; false stops
};

struct UpstreamEnd {
  enum class How { kComplete, kStopped, kNoConnection, kSilent, kCut, kTooLarge } how;
  std::string detail;  ///< for people; holds no key
};

/// A connection pool for one thread.
class Upstream {
 public:
  explicit Upstream(const UpstreamOptions& options);
  ~Upstream();
  Upstream(const Upstream&) = delete;
  Upstream& operator=(const Upstream&) = delete;

  UpstreamEnd call(const UpstreamCall& call);

 private:
  const UpstreamOptions& options_;
  void* easy_;  // CURL*
};

}  // namespace cbench::relay
