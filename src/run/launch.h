// One launch of the agent: starts its box, keeps its output, waits for the process (not for the
// holders of its pipes), and ends everything inside.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "box/box.h"

namespace cbench {

struct LaunchSpec {
  BoxKind kind = BoxKind::kBwrap;
  BoxSpec box;
  std::string out_path, err_path;  ///< raw bytes of the streams
  uint64_t max_output = 0;         ///< per stream; more is read and dropped
  double deadline = 0;             ///< boot_seconds()
  int interrupt_fd = -1;           ///< readable: end now
  std::function<void()> tick;      ///< called about once a second
};

struct LaunchEnd {
  std::string why;  ///< "exited", "signalled", "deadline", "interrupted"
  ExitStatus status;
  double seconds = 0;
  uint64_t out_bytes = 0, err_bytes = 0;  ///< of the streams, kept or not
  bool output_cut = false;                ///< not all of them was kept
  std::string limits;                     ///< what bounds the box
};

/// When it returns nothing that ran inside is alive. Throws EnvironmentError ("box_unavailable",
/// "box_mount", "spawn").
LaunchEnd run_launch(const LaunchSpec& spec);

}  // namespace cbench
