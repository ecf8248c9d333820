// Time: a monotonic clock that runs through suspend for budgets, UTC stamps for records.
#pragma once

#include <string>

namespace cbench {

/// Seconds of CLOCK_BOOTTIME: unaffected by wall-clock steps, counts through suspend.
double boot_seconds();

/// Kernel boot id; a different value means that boot_seconds() started anew.
std::string boot_id();

/// Current UTC time, "2026-01-31T12:34:56.789Z".
std::string utc_now();

}  // namespace cbench
