// Fuzzes cbench.json: any bytes are either refused with an error or give a manifest whose promises
// hold.
#include <cstdlib>
#include <string_view>

#include "package/manifest.h"
#include "package/path_rules.h"
#include "util/error.h"

namespace {

void check(const cbench::Manifest& manifest) {
  for (const auto& [matrix, format] : manifest.matrices) {
    if (manifest.parameters_of(matrix) == nullptr) std::abort();
    if (!manifest.plugin.present()) std::abort();
  }
  for (const std::string& path : manifest.plugin.sources) {
    if (!cbench::is_plain_path(path)) std::abort();
  }
  if (!manifest.graph.layers) return;
  int previous = -1;
  for (const int layer : *manifest.graph.layers) {
    if (layer <= previous) std::abort();
    previous = layer;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  try {
    check(cbench::parse_manifest({reinterpret_cast<const char*>(bytes), size}, "fuzz"));
  } catch (const cbench::UsageError&) {
  }
  return 0;
}
