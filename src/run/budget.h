// The agent's time. Counts on a clock that wall-clock changes do not touch and that runs through
// suspend; what was used survives a crash in a small file, so that a restart neither gives time
// back nor takes any.
#pragma once

#include <mutex>
#include <string>

namespace cbench {

/// Safe to ask from several threads.
class Budget {
 public:
  /// `path`: heartbeat.json. What it holds, or `used` if that is more, has been used already.
  Budget(std::string path, double total_seconds, double used = 0);

  void start();  ///< the clock runs
  void stop();   ///< the clock stands still; writes the heartbeat
  /// Writes the heartbeat when the last one is old enough. A full disk is a warning: losing a few
  /// seconds of accounting must not end a run.
  void tick();

  double total() const { return total_; }
  double used() const;
  double left() const;
  /// boot_seconds() at which the budget ends; only while the clock runs.
  double deadline() const;

 private:
  void write();
  double used_now() const;

  mutable std::mutex mutex_;
  std::string path_;
  double total_;
  double used_ = 0;
  double started_ = -1;  ///< boot_seconds() of start(), -1 = standing still
  double written_ = -1e9;
  bool warned_ = false;
};

/// Seconds used according to a heartbeat file; 0 when there is none that can be read.
double read_heartbeat(const std::string& path);

/// "8", "0.5", "1.25" hours to seconds: plain decimal digits. Everything else (nan, inf, -1, 0,
/// 012, 1e400, blanks) is a UsageError ("hours"), as is more than 8784 hours.
double parse_hours(const std::string& text);

}  // namespace cbench
