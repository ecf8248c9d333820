// HTTP/1.1 requests of an agent in a box (RFC 9112), read strictly and within bounds. What is
// ambiguous is refused, never repaired: a request that two parsers could read differently must not
// pass through.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cbench::relay {

inline constexpr size_t kMaxHead = 64u << 10;   ///< request line and fields together
inline constexpr size_t kMaxTarget = 2u << 10;  ///< path and query
inline constexpr size_t kMaxFields = 128;

struct RequestHead {
  std::string method, path, query;                          ///< query without '?'
  std::vector<std::pair<std::string, std::string>> fields;  ///< names in lower case
  uint64_t length = 0;                                      ///< Content-Length; 0 if chunked
  bool chunked = false;
  bool keep_alive = true;
  bool expects_continue = false;

  const std::string* find(std::string_view lower_case_name) const;
};

struct HeadResult {
  enum class State { kMore, kDone, kBad } state = State::kMore;
  size_t used = 0;     ///< kDone: bytes of the head, its empty line included
  int status = 400;    ///< kBad: what to answer
  std::string reason;  ///< kBad: one short sentence
};

/// Looks for one whole head at the beginning of `bytes`.
HeadResult parse_head(std::string_view bytes, RequestHead& head);

/// Decodes a chunked body piece by piece; extensions are skipped, trailers dropped.
class ChunkedBody {
 public:
  explicit ChunkedBody(uint64_t most) : most_(most) {}
  /// Takes bytes and appends the body's to `out`; returns how many were used. Fewer than given
  /// only when done() or bad().
  size_t take(std::string_view bytes, std::string& out);
  bool done() const { return state_ == State::kDone; }
  bool bad() const { return state_ == State::kBad; }
  bool too_large() const { return too_large_; }

 private:
  enum class State { kSize, kData, kDataEnd, kTrailer, kDone, kBad };
  bool take_line();

  State state_ = State::kSize;
  uint64_t most_;
  uint64_t total_ = 0;
  uint64_t left_ = 0;
  size_t trailer_ = 0;
  std::string line_;
  bool too_large_ = false;
};

}  // namespace cbench::relay
