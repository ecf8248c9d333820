// The engine process: loads a package and its plugin, then answers the evaluator until it hangs up.
// It runs inside a box and knows nothing but token ids.
#pragma once

#include <string>

#include "util/file.h"

namespace cbench {

struct EngineServerOptions {
  std::string package;     ///< directory, as seen in the box
  std::string plugin;      ///< shared object, "" = none
  std::string device;      ///< "cpu" or "cuda"
  bool synthetic = false;  ///< random weights instead of a package's; no evaluation asks for it
  /// Bytes of the device that the matrices of a plain package's blocks may take, slots included;
  /// what is beyond streams from host memory. < 0: what is free decides.
  int64_t stream_budget = -1;
};

/// Serves one evaluator on `socket` until it says bye or hangs up. Returns the process exit code;
/// errors are reported to the evaluator as an "error" message (docs/engine-protocol.md).
int serve_engine(Fd socket, const EngineServerOptions& options);

}  // namespace cbench
