// Requests to the relay: the head's parser and the chunk decoder must neither crash nor disagree
// with themselves, however the bytes are cut.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "relay/policy.h"
#include "relay/request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cbench::relay;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  RequestHead head;
  const HeadResult result = parse_head(bytes, head);
  if (result.state == HeadResult::State::kDone) {
    if (result.used > size) std::abort();
    refuse_head(Api::kAnthropic, head, 1 << 20);
  }
  std::string whole, pieces;
  ChunkedBody one(1 << 16), many(1 << 16);
  const size_t used = one.take(bytes, whole);
  size_t at = 0;
  while (at < size && !many.done() && !many.bad()) at += many.take(bytes.substr(at, 1), pieces);
  if (used != at || whole != pieces || one.done() != many.done()) std::abort();
  return 0;
}
