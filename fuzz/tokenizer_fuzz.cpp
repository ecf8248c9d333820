// Untrusted tokenizer files and texts: bytes before the first NUL are a tokenizer.json, the rest is
// a text for it. Whatever loads must encode, decode and stream without a crash, and streaming must
// equal decoding.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/tokenizer.h"
#include "util/error.h"
#include "util/text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cbench;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.find('\0');
  const std::string text =
      repair_utf8(split == std::string_view::npos ? "some text" : input.substr(split + 1));
  try {
    const Tokenizer tokenizer = Tokenizer::load_bytes(input.substr(0, split), "fuzz");
    const auto ids = tokenizer.encode(text);
    const std::string decoded = tokenizer.decode(ids, false);
    StreamDecoder stream(tokenizer, false);
    std::string streamed;
    for (const int32_t id : ids) {
      const std::string part = stream.push(id);
      if (!is_utf8(part)) std::abort();
      streamed += part;
    }
    streamed += stream.finish();
    if (streamed != decoded || !is_utf8(decoded)) std::abort();
  } catch (const Error&) {
    // A clear refusal is the expected outcome.
  }
  return 0;
}
