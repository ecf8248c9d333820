// Sizes and durations with their units: strict parsing, stable printing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cbench {

/// "8 GiB", "512 KiB", "3.5 MiB", "100 B" to bytes. A unit (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB)
/// is required; the value must come out a whole number of bytes below 2^62. Throws UsageError
/// "size".
int64_t parse_size(std::string_view text);

/// "8h", "90m", "45s", "1.5 h", "250ms" to seconds. A unit is required; finite, > 0, at most 10
/// years. Throws UsageError "duration".
double parse_duration(std::string_view text);

/// A finite decimal number (no hex, no inf or nan, no blanks around it); false when it is not one.
bool parse_decimal(std::string_view text, double& value);

/// 1234567 -> "1.18 MiB"; below 1 KiB in bytes.
std::string format_size(int64_t bytes);

/// 3723.4 -> "1h 02m 03s"; below a minute "12.3 s".
std::string format_duration(double seconds);

}  // namespace cbench
