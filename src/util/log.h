// The program's log: spdlog to standard error, so that standard output stays machine-readable.
#pragma once

#include <spdlog/spdlog.h>

namespace cbench {

/// Sets up the default logger. verbosity: 0 warnings only, 1 info, 2 debug.
void set_up_log(int verbosity);

}  // namespace cbench
