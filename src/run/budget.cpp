#include "run/budget.h"

#include <algorithm>
#include <cmath>

#include "util/clock.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace {
constexpr double kHeartbeat = 2;  // seconds between writes: what a crash can lose
constexpr double kMaxHours = 8784;
}  // namespace

double read_heartbeat(const std::string& path) {
  try {
    const double used = json_number(read_json(path), "used_seconds", path);
    return std::isfinite(used) && used > 0 ? used : 0;
  } catch (const Error&) {
    return 0;
  }
}

Budget::Budget(std::string path, double total_seconds, double used)
    : path_(std::move(path)), total_(total_seconds), used_(std::max(used, read_heartbeat(path_))) {}

double Budget::used_now() const {
  return started_ < 0 ? used_ : used_ + (boot_seconds() - started_);
}

double Budget::used() const {
  const std::lock_guard lock(mutex_);
  return used_now();
}

double Budget::left() const { return std::max(0.0, total_ - used()); }

double Budget::deadline() const {
  const std::lock_guard lock(mutex_);
  return started_ + total_ - used_;
}

void Budget::start() {
  const std::lock_guard lock(mutex_);
  if (started_ >= 0) return;
  started_ = boot_seconds();
  write();
}

void Budget::stop() {
  const std::lock_guard lock(mutex_);
  if (started_ < 0) return;
  used_ = used_now();
  started_ = -1;
  write();
}

void Budget::tick() {
  const std::lock_guard lock(mutex_);
  if (boot_seconds() - written_ >= kHeartbeat) write();
}

void Budget::write() {
  written_ = boot_seconds();
  try {
    write_file_atomic(path_, dump_json({{"schema", "cbench.heartbeat.v1"},
                                        {"utc", utc_now()},
                                        {"boot_id", boot_id()},
                                        {"boot_seconds", written_},
                                        {"used_seconds", used_now()},
                                        {"budget_seconds", total_},
                                        {"running", started_ >= 0}}) +
                                 "\n");
  } catch (const Error& error) {
    if (!warned_) spdlog::warn("the time used could not be recorded: {}", error.what());
    warned_ = true;
  }
}

double parse_hours(const std::string& text) {
  const size_t point = text.find('.');
  const std::string whole = text.substr(0, point);
  const bool digits = !text.empty() && text.size() <= 20 &&
                      text.find_first_not_of("0123456789.") == std::string::npos &&
                      (point == std::string::npos ||
                       (text.find('.', point + 1) == std::string::npos && point + 1 < text.size()));
  const bool plain = !whole.empty() && (whole == "0" || whole[0] != '0');
  double hours = 0;
  if (!digits || !plain || !parse_decimal(text, hours) || !(hours > 0) || hours > kMaxHours) {
    throw UsageError("hours", "--hours \"" + printable(text) +
                                  "\": expected plain decimal hours, more than 0 and at most 8784, "
                                  "for example 8 or 0.5");
  }
  return hours * 3600;
}

}  // namespace cbench
