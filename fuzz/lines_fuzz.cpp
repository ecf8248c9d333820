// Fuzzes the decoder of downloaded line files. The first byte chooses the format and how the rest
// is cut into pieces: a stream gives bounded lines without line ends, or an error. How it was cut
// does not matter.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "fetch/line_decoder.h"
#include "util/error.h"

namespace {

constexpr size_t kMaxLine = 4096;

struct Outcome {
  std::vector<std::string> lines;
  bool failed = false;
};

Outcome decode(cbench::LineDecoder::Format format, std::string_view bytes, size_t piece) {
  Outcome outcome;
  const auto keep = [&](std::string_view line, bool too_long) {
    if (line.size() > kMaxLine || (too_long && !line.empty())) std::abort();
    if (line.find('\n') != std::string_view::npos) std::abort();
    outcome.lines.emplace_back(line);
    return outcome.lines.size() < 10000;
  };
  try {
    cbench::LineDecoder decoder(format, "fuzz", kMaxLine, keep);
    bool more = true;
    for (; more && !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
      more = decoder.feed(bytes.substr(0, piece));
    }
    if (more) decoder.end();
  } catch (const cbench::Error&) {
    outcome.failed = true;
  }
  return outcome;
}

/// The same, but for how many lines came out before the damage was seen.
bool agree(const Outcome& a, const Outcome& b) {
  if (a.failed != b.failed || (!a.failed && a.lines.size() != b.lines.size())) return false;
  const size_t common = std::min(a.lines.size(), b.lines.size());
  return std::equal(a.lines.begin(), a.lines.begin() + static_cast<std::ptrdiff_t>(common),
                    b.lines.begin());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size < 1) return 0;
  const auto format = static_cast<cbench::LineDecoder::Format>(bytes[0] % 3);
  const std::string_view rest(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const Outcome whole = decode(format, rest, rest.size() + 1);
  const Outcome pieces = decode(format, rest, 1 + bytes[0] / 3);
  if (!agree(whole, pieces)) std::abort();
  return 0;
}
