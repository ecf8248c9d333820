#include "util/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "util/error.h"

namespace cbench {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr std::array<Unit, 9> kSizes{{{"B", 1},
                                      {"KB", 1e3},
                                      {"MB", 1e6},
                                      {"GB", 1e9},
                                      {"TB", 1e12},
                                      {"KiB", 1024.0},
                                      {"MiB", 1048576.0},
                                      {"GiB", 1073741824.0},
                                      {"TiB", 1099511627776.0}}};
constexpr std::array<Unit, 5> kTimes{
    {{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}}};

/// Splits "8 GiB" into the number and the unit's factor; false when either is not understood.
template <size_t N>
bool split(std::string_view text, const std::array<Unit, N>& units, double& value) {
  size_t end = 0;
  while (end < text.size() && (text[end] == '.' || (text[end] >= '0' && text[end] <= '9'))) ++end;
  double number = 0;
  if (!parse_decimal(text.substr(0, end), number)) return false;
  std::string_view unit = text.substr(end);
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const Unit& known : units) {
    if (unit == known.name) {
      value = number * known.factor;
      return true;
    }
  }
  return false;
}

std::string format(const char* pattern, double value) {
  std::array<char, 64> buffer;
  std::snprintf(buffer.data(), buffer.size(), pattern, value);
  return buffer.data();
}

}  // namespace

bool parse_decimal(std::string_view text, double& value) {
  const bool starts_well = !text.empty() && (text[0] == '-' || (text[0] >= '0' && text[0] <= '9'));
  if (!starts_well) return false;
  // A leading zero ("012") reads as octal in some dialects, so it is refused rather than guessed.
  const std::string_view digits = text[0] == '-' ? text.substr(1) : text;
  if (digits.size() > 1 && digits[0] == '0' && digits[1] != '.') return false;
  if (digits.empty() || digits[0] < '0' || digits[0] > '9') return false;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc{} && end == text.data() + text.size() && std::isfinite(value);
}

int64_t parse_size(std::string_view text) {
  double bytes = 0;
  if (!split(text, kSizes, bytes) || bytes != std::floor(bytes) || bytes >= 0x1p62) {
    throw UsageError("size", "\"" + std::string(text) +
                                 "\" is not a size; write a number and a unit, for example 8 GiB");
  }
  return static_cast<int64_t>(bytes);
}

double parse_duration(std::string_view text) {
  double seconds = 0;
  if (!split(text, kTimes, seconds) || seconds <= 0 || seconds > 10.0 * 366 * 86400) {
    throw UsageError("duration",
                     "\"" + std::string(text) +
                         "\" is not a duration; write a number and a unit, for example 8h");
  }
  return seconds;
}

std::string format_size(int64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  const double value = static_cast<double>(bytes);
  if (value < 0x1p20) return format("%.1f KiB", value / 0x1p10);
  if (value < 0x1p30) return format("%.2f MiB", value / 0x1p20);
  return format("%.2f GiB", value / 0x1p30);
}

std::string format_duration(double seconds) {
  if (seconds < 60) return format("%.1f s", seconds);
  const long whole = std::lround(seconds);
  std::array<char, 64> buffer;
  if (whole < 3600) {
    std::snprintf(buffer.data(), buffer.size(), "%ldm %02lds", whole / 60, whole % 60);
  } else {
    std::snprintf(buffer.data(), buffer.size(), "%ldh %02ldm %02lds", whole / 3600, whole / 60 % 60,
                  whole % 60);
  }
  return buffer.data();
}

}  // namespace cbench
