// Makes a package out of a checkpoint by round-to-nearest: weights, manifest and an
// example's plugin source. A baseline and a place to start from; the result is a package like any
// other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "package/rtn.h"

namespace cbench {

/// Which of the examples' plugins goes into the package; both read the same format.
enum class PackPlugin {
  kStarter,  ///< examples/starter: dequantize only, the shortest that works
  kFast,     ///< examples/fast-matmul: decodes several times faster
};

struct PackChoice {
  RtnChoice weights;       ///< of every matrix
  int embedding_bits = 0;  ///< of the embedding and the output head; 0 = as the others
  PackPlugin plugin = PackPlugin::kStarter;
  /// "4-bit g64 mse", with "e8" in front when the embedding differs.
  std::string text() const;
};

struct PackReport {
  int64_t bytes = 0;                 ///< sum of the files' sizes
  int64_t quantised = 0, kept = 0;   ///< matrices quantised, tensors left as they are
  std::vector<std::string> skipped;  ///< matrices that the groups do not divide; left as they are
};

/// Writes cbench.json, weights.safetensors and src/plugin.cpp into `out`, a new or empty directory.
/// Only the text model goes in; a layer's experts, however stored, become one matrix of their
/// canonical name (docs/package.md).
/// Throws UsageError ("not_empty", "rtn", the codes of TensorStore), EnvironmentError.
PackReport pack_checkpoint(const std::string& checkpoint, const std::string& task,
                           const PackChoice& choice, const std::string& out);

/// What pack_checkpoint would make, without doing the work; exact but for the safetensors header.
int64_t packed_bytes(const std::string& checkpoint, const PackChoice& choice);

/// An example's plugin source, compiled into the binary.
std::string_view plugin_source(PackPlugin plugin);

}  // namespace cbench
