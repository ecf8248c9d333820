// The freeze: the live submission becomes a sealed copy that nobody holds open, with a manifest of
// its hashes. Can be repeated after a crash at any point.
#pragma once

#include <cstdint>
#include <string>

#include "package/tree.h"
#include "run/run_dir.h"

namespace cbench {

struct Frozen {
  std::string package_hash;
  uint64_t bytes = 0;
  size_t files = 0;
  std::string code, message;  ///< why the submission was refused; then nothing was copied
  bool refused() const { return !code.empty(); }
};

/// The agent must be gone. Throws EnvironmentError ("disk_full", "io"): nothing is lost then.
Frozen freeze_submission(const RunDir& run, const TreeLimits& limits);

/// Bounds of what an agent may save or submit under a limit of `limit` bytes: more than the limit,
/// so that the verdict can say by how much, and not without end.
TreeLimits submission_limits(int64_t limit);

}  // namespace cbench
